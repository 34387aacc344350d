/** Where a worker says what it does. */

/** Takes lines of a log; `console` is one. */
export interface Logger {
  info(line: string): void;
  warn(line: string): void;
  error(line: string, error?: unknown): void;
}

/** What goes wrong is told on standard error; what goes well is not told. */
export const TROUBLE: Logger = {
  info: () => {},
  warn: (line) => console.warn(`abide: ${line}`),
  error: (line, error) => console.error(`abide: ${line}`, error),
};
