import jupyter from '@jupyter/eslint-plugin';
import prettier from 'eslint-config-prettier';
import tseslint from 'typescript-eslint';

export default tseslint.config(
  { ignores: ['node_modules/', 'lib/'] },
  ...tseslint.configs.strictTypeChecked.map(config => ({
    ...config,
    files: ['**/*.ts']
  })),
  ...jupyter.configs.recommended,
  {
    files: ['**/*.ts'],
    languageOptions: {
      parserOptions: {
        project: './tsconfig.test.json',
        tsconfigRootDir: import.meta.dirname
      }
    },
    rules: {
      curly: ['error', 'all'],
      eqeqeq: 'error',
      'no-restricted-properties': [
        'error',
        // Text of the API is shown as text, never parsed as HTML.
        { property: 'innerHTML', message: 'Use textContent.' },
        { property: 'outerHTML', message: 'Use textContent.' },
        { property: 'insertAdjacentHTML', message: 'Use textContent.' }
      ],
      '@typescript-eslint/naming-convention': [
        'error',
        {
          selector: 'interface',
          format: ['PascalCase'],
          custom: { regex: '^I[A-Z]', match: true }
        }
      ],
      // Lumino's signals take `this` as the second argument of connect().
      '@typescript-eslint/unbound-method': 'off',
      // The panel and the status bar item are needed at once, and are small.
      'jupyter/prefer-lazy-imports': 'off',
      '@typescript-eslint/restrict-template-expressions': [
        'error',
        { allowNumber: true }
      ]
    }
  },
  {
    // Labels in samples of documents are not shown to anybody.
    files: ['test/**'],
    rules: { 'jupyter/no-untranslated-string': 'off' }
  },
  {
    // The pure files know nothing of JupyterLab, so that the notebook widget can share them.
    files: [
      'src/protocol.ts',
      'src/countdown.ts',
      'src/format.ts',
      'src/warnings.ts',
      'src/sse.ts',
      'src/drive/entries.ts',
      'src/views/banner.ts',
      'src/views/card.ts',
      'src/views/dom.ts',
      'src/widget/**'
    ],
    rules: {
      'no-restricted-imports': [
        'error',
        { patterns: ['@jupyterlab/*', '@lumino/*', 'react'] }
      ]
    }
  },
  prettier
);
