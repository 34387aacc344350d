/** The test kit: workflows in memory, with time that passes when it is told to, and crashes wherever there can be one. */

export { type CrashOptions, crashEverywhere, OtherEnd } from "./crash.js";
export { type CrashAt, START_MS, Stuck, TestEngine, TestRun } from "./engine.js";
export type { TestStatus } from "./run.js";
