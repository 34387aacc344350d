/** The events of a stream, as a server tells them (`text/event-stream`). */

import { AbideError, ConnectionFailed, describe } from "./errors.js";
import { type Http, problemOf } from "./http.js";
import { loads } from "./jsons.js";

/** How long a stream may be silent: servers say more often than this that they are alive. */
const SILENT_MS_MAX = 90_000;
const EVENT_BYTES_MAX = 64 * 1024 * 1024;

/** Something that a stream told. */
export interface Told {
  /** What it is. */
  name: string;
  /** What it says. */
  data: unknown;
  /** Where to go on after it. */
  id?: string;
}

/** Makes events of pieces, wherever they are cut. */
export class Parser {
  private line: Buffer[] = [];
  private event: { name?: string; id?: string; data: string[] } = { data: [] };
  private size = 0;

  /** The events that end in a piece. */
  read(piece: Buffer): Told[] {
    const found: Told[] = [];
    let from = 0;
    for (let end = piece.indexOf(10); end >= 0; end = piece.indexOf(10, from)) {
      const line = Buffer.concat([...this.line, piece.subarray(from, end)]).toString();
      this.line = [];
      from = end + 1;
      const told = this.take(line.replace(/\r$/, ""));
      if (told !== undefined) found.push(told);
    }
    const rest = piece.subarray(from);
    this.size += rest.length;
    if (rest.length > 0) this.line.push(rest);
    if (this.size > EVENT_BYTES_MAX) {
      throw new ConnectionFailed(`expected an event of at most ${EVENT_BYTES_MAX} bytes, found one of more`);
    }
    return found;
  }

  private take(line: string): Told | undefined {
    if (line === "") {
      const { name, id, data } = this.event;
      this.event = { data: [] };
      this.size = 0;
      // Without a name it only says that the stream is alive.
      if (name === undefined) return undefined;
      return { name, data: read(data.join("\n")), ...(id === undefined ? {} : { id }) };
    }
    this.size += line.length;
    const at = line.indexOf(":");
    const field = at < 0 ? line : line.slice(0, at);
    const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
    // Anything else is a remark, or of a later release.
    if (field === "id") this.event.id = value;
    else if (field === "event") this.event.name = value;
    else if (field === "data") this.event.data.push(value);
    return undefined;
  }
}

function read(text: string): unknown {
  try {
    return loads(text);
  } catch (error) {
    throw new ConnectionFailed(`expected an event with JSON, found ${describe(text)}`, { cause: error });
  }
}

/**
 * What one connection tells, behind the last event that came.
 *
 * @throws {Problem} the server said no.
 * @throws {ConnectionFailed} there is no stream, or it broke.
 */
export async function* told(http: Http, path: string, last?: string, signal?: AbortSignal): AsyncGenerator<Told> {
  const headers = { Accept: "text/event-stream", ...(last === undefined ? {} : { "Last-Event-ID": last }) };
  const stream = await http.stream(path, { headers, silentMs: SILENT_MS_MAX, ...(signal === undefined ? {} : { signal }) });
  try {
    if (stream.status >= 300) throw problemOf(await stream.rest());
    const kind = stream.header("content-type");
    if (!kind.startsWith("text/event-stream")) throw new ConnectionFailed(`expected text/event-stream, found ${describe(kind)}`);
    const parser = new Parser();
    for await (const piece of stream.pieces()) yield* parser.read(piece);
  } catch (error) {
    if (error instanceof AbideError) throw error;
    throw new ConnectionFailed(`GET ${path}: ${(error as Error).message}`, { cause: error });
  } finally {
    stream.close();
  }
}
