import { describe, expect, it } from 'vitest';

/** Every source file of the extension, as text. */
const files = import.meta.glob<string>('../src/**/*.ts', {
  eager: true,
  query: '?raw',
  import: 'default'
});

/** Which layer a file is of; it may import its own layer and those before it. */
const LAYERS: readonly (readonly RegExp[])[] = [
  [/^protocol$/, /^sse$/, /^outputs\/sha256$/],
  [/^countdown$/],
  [/^format$/, /^warnings$/, /^preferences$/, /^cells$/, /^handedCells$/],
  [/^drive\/entries$/, /^outputs\/outputsModel$/],
  [/^source$/],
  [/^api$/, /^stream$/, /^drive\/drive$/],
  [/^model$/, /^chatsModel$/],
  [/^icons$/, /^views\//, /^kernelLine$/, /^outputs\/notebookOutputs$/],
  [/^outputs\/outputsLoader$/],
  [/^drive\/(browser|head)$/],
  [
    /^currentNotebook$/,
    /^notifications$/,
    /^cellNotifier$/,
    /^commands$/,
    /^chatCommands$/,
    /^detach$/,
    /^restore$/,
    /^widget\//
  ],
  [/^drive\/commands$/],
  [/^drive\/controller$/],
  [/^index$/]
];

/** What the notebook widget is made of, which no package of JupyterLab may get into. */
const PURE =
  /^(protocol|sse|countdown|format|warnings|preferences|cells|handedCells|outputs\/(sha256|outputsModel)|widget\/.*|views\/(dom|banner|card|chip|start|deadlines|facts|actions|sessions|welcome|account|chats|restoreView)|drive\/entries)$/;

function layerOf(name: string): number {
  return LAYERS.findIndex(layer => layer.some(one => one.test(name)));
}

const modules = Object.entries(files).map(([path, text]) => {
  const name = path.replace('../src/', '').replace(/\.ts$/, '');
  const imports = [...text.matchAll(/from '([^']+)'/g)].map(
    one => one[1] ?? ''
  );
  return { name, imports };
});

describe('the source files', () => {
  it('are all of a layer', () => {
    const lost = modules.filter(one => layerOf(one.name) < 0);
    expect(lost.map(one => one.name)).toEqual([]);
    expect(modules.length).toBeGreaterThan(20);
  });

  it('import downwards only', () => {
    const upwards = modules.flatMap(({ name, imports }) =>
      imports
        .filter(one => one.startsWith('.'))
        .map(one => {
          const { pathname } = new URL(one, `http://x/${name}`);
          return pathname.slice(1);
        })
        .filter(target => layerOf(target) > layerOf(name))
        .map(target => `${name} → ${target}`)
    );
    expect(upwards).toEqual([]);
  });

  it('of the widget import nothing of JupyterLab', () => {
    const foreign = modules
      .filter(one => PURE.test(one.name))
      .flatMap(({ name, imports }) =>
        imports
          .filter(one => /^(@jupyterlab|@lumino|react)/.test(one))
          .map(one => `${name} → ${one}`)
      );
    expect(foreign).toEqual([]);
  });
});
