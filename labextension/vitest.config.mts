import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    // A test of what touches the page asks for jsdom in its first line.
    environment: 'node',
    include: ['test/**/*.test.ts'],
    maxWorkers: 2,
    testTimeout: 20_000
  }
});
