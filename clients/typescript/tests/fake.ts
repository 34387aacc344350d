/** A server of our own on a real socket: it answers as it is told, and breaks as it is told. */

import { createServer, type Server, type Socket } from "node:net";
import * as tls from "node:tls";

/** A request that came. */
export interface Asked {
  method: string;
  path: string;
  headers: Record<string, string>;
  body: any;
  /** The body as it came. */
  text: string;
}

/** What is answered. */
export interface Said {
  body?: unknown;
  status?: number;
  headers?: Record<string, string>;
  /** `hang_up`: no answer. `cut`: half of it. `raw`: a text, as it is, then its end. */
  how?: "length" | "chunked" | "until_close" | "hang_up" | "cut" | "raw";
}

/** Says what to answer. */
export type Handler = (asked: Asked) => Promise<Said>;

/** A server. */
export class Fake {
  readonly asked: Asked[] = [];
  connections = 0;
  private port = 0;
  private server: Server | undefined;
  private readonly sockets = new Set<Socket>();

  constructor(
    public handler: Handler,
    private readonly secure?: tls.TlsOptions,
  ) {}

  get url(): string {
    return this.secure === undefined ? `http://127.0.0.1:${this.port}` : `https://localhost:${this.port}`;
  }

  async start(): Promise<this> {
    // A client that goes away is no trouble of ours.
    const serve = (socket: Socket) => void this.serve(socket).catch(() => {});
    const server = this.secure === undefined ? createServer(serve) : tls.createServer(this.secure, serve);
    this.server = server;
    await new Promise<void>((resolve) => server.listen(this.port, "127.0.0.1", resolve));
    this.port = (server.address() as { port: number }).port;
    return this;
  }

  async stop(): Promise<void> {
    this.hangUp();
    await new Promise((resolve) => this.server?.close(resolve));
  }

  /** Closes all connections. */
  hangUp(): void {
    for (const socket of this.sockets) socket.destroy();
  }

  private async serve(socket: Socket): Promise<void> {
    this.connections += 1;
    this.sockets.add(socket);
    socket.on("error", () => {});
    socket.on("close", () => this.sockets.delete(socket));
    let data: Buffer = Buffer.alloc(0);
    for await (const part of socket as AsyncIterable<Buffer>) {
      data = Buffer.concat([data, part]);
      for (let taken = take(data); taken !== undefined; taken = take(data)) {
        data = taken.rest;
        this.asked.push(taken.asked);
        if (!say(socket, await this.handler(taken.asked))) return;
      }
    }
  }
}

/** The first request in what has come, if it is whole. */
function take(data: Buffer): { asked: Asked; rest: Buffer } | undefined {
  const end = data.indexOf("\r\n\r\n");
  if (end < 0) return undefined;
  const [first = "", ...lines] = data.subarray(0, end).toString("latin1").split("\r\n");
  const [method = "", path = ""] = first.split(" ");
  const split = (line: string) => [line.split(":")[0]!.toLowerCase(), line.slice(line.indexOf(":") + 1).trim()];
  const headers = Object.fromEntries(lines.map(split)) as Record<string, string>;
  const length = Number(headers["content-length"] ?? 0);
  if (data.length < end + 4 + length) return undefined;
  const text = data.subarray(end + 4, end + 4 + length).toString();
  const asked = { method, path, headers, text, body: text === "" ? undefined : JSON.parse(text) };
  return { asked, rest: data.subarray(end + 4 + length) };
}

/** Answers; whether the connection is kept. */
function say(socket: Socket, said: Said): boolean {
  const { status = 200, headers = {}, how = "length" } = said;
  if (how === "hang_up") {
    socket.destroy();
    return false;
  }
  let data = Buffer.from(how === "raw" ? String(said.body) : JSON.stringify(said.body ?? null));
  const kind = status >= 400 ? "application/problem+json" : "application/json";
  const lines = [`HTTP/1.1 ${status} Whatever`, ...("Content-Type" in headers ? [] : [`Content-Type: ${kind}`])];
  for (const [name, value] of Object.entries(headers)) lines.push(`${name}: ${value}`);
  if (how === "chunked") {
    lines.push("Transfer-Encoding: chunked");
    const parts: Buffer[] = [];
    for (let at = 0; at < data.length; at += 7) {
      const part = data.subarray(at, at + 7);
      parts.push(Buffer.from(`${part.length.toString(16)};ext=1\r\n`), part, Buffer.from("\r\n"));
    }
    data = Buffer.concat([...parts, Buffer.from("0\r\nTrailer: x\r\n\r\n")]);
  } else if (how !== "until_close" && how !== "raw") {
    lines.push(`Content-Length: ${data.length}`);
  }
  socket.write(`${lines.join("\r\n")}\r\n\r\n`);
  const all = how === "cut" ? data.subarray(0, data.length / 2) : data;
  if (how === "length" || how === "chunked") return socket.write(all) || true;
  socket.end(all);
  return false;
}

/** A problem as a server says it. */
export function problem(status: number, code: string, more: object = {}): Said {
  const said = { type: "about:blank", title: code, status, code, detail: `${code} happened`, what_to_do: "do something else" };
  return { body: { ...said, ...more }, status };
}

/** Answers in order; the last one for good. */
export function inOrder(...said: Said[]): Handler {
  return async () => (said.length > 1 ? said.shift()! : said[0]!);
}
