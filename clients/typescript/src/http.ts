/** Requests to one server, over connections that are kept. */

import * as plainHttp from "node:http";
import * as secureHttp from "node:https";

import { AbideError, ConnectionFailed, describe, Problem, saying, Unencodable, Untrusted } from "./errors.js";
import { loads } from "./jsons.js";
import type { ProblemBody } from "./protocol.js";

const BODY_BYTES_MAX = 256 * 1024 * 1024;
const STALE = new Set(["ECONNRESET", "EPIPE"]);

/** What Node says of a certificate that it does not trust. */
const UNTRUSTED = new Set([
  "CERT_CHAIN_TOO_LONG",
  "CERT_HAS_EXPIRED",
  "CERT_NOT_YET_VALID",
  "CERT_REJECTED",
  "CERT_REVOKED",
  "CERT_SIGNATURE_FAILURE",
  "CERT_UNTRUSTED",
  "DEPTH_ZERO_SELF_SIGNED_CERT",
  "ERROR_IN_CERT_NOT_AFTER_FIELD",
  "ERROR_IN_CERT_NOT_BEFORE_FIELD",
  "ERR_TLS_CERT_ALTNAME_FORMAT",
  "ERR_TLS_CERT_ALTNAME_INVALID",
  "HOSTNAME_MISMATCH",
  "INVALID_CA",
  "INVALID_PURPOSE",
  "PATH_LENGTH_EXCEEDED",
  "SELF_SIGNED_CERT_IN_CHAIN",
  "UNABLE_TO_DECODE_ISSUER_PUBLIC_KEY",
  "UNABLE_TO_DECRYPT_CERT_SIGNATURE",
  "UNABLE_TO_GET_CRL",
  "UNABLE_TO_GET_ISSUER_CERT",
  "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
  "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
]);

/** An address that is none. */
export class BadUrl extends AbideError {}

/** Whom to trust, and how to show who asks: as for `node:tls`. */
export type TlsOptions = Pick<
  secureHttp.AgentOptions,
  "ca" | "cert" | "key" | "passphrase" | "servername" | "rejectUnauthorized"
>;

/** What a server answered. */
export class Response {
  constructor(
    readonly status: number,
    readonly headers: Readonly<Record<string, string | string[] | undefined>>,
    readonly text: string,
  ) {}

  /** The body's value. */
  json(): unknown {
    if (this.text === "") return null;
    try {
      return loads(this.text);
    } catch (error) {
      throw new ConnectionFailed(`expected JSON, found ${describe(this.text)}`, { cause: error });
    }
  }

  /** A header that is there once. */
  header(name: string): string {
    const found = this.headers[name];
    return typeof found === "string" ? found : "";
  }
}

/** How a request is sent. */
export interface RequestOptions {
  headers?: Record<string, string>;
  /** How long the answer may take, in milliseconds. */
  timeoutMs?: number;
  /** Aborted when nobody waits for the answer any more. */
  signal?: AbortSignal;
}

/** Requests to one server. */
export class Http {
  private readonly url: URL;
  private readonly prefix: string;
  private readonly agent: plainHttp.Agent;

  constructor(
    url: string,
    private readonly token?: string,
    tls: TlsOptions = {},
  ) {
    const found = URL.canParse(url) ? new URL(url) : undefined;
    if (found === undefined || !["http:", "https:"].includes(found.protocol) || found.hostname === "") {
      throw new BadUrl(`url: expected http://host:port or https://host:port, found ${describe(url)}`);
    }
    this.url = found;
    this.prefix = found.pathname.replace(/\/+$/, "");
    const kept = { keepAlive: true, maxFreeSockets: 16, scheduling: "lifo" } as const;
    this.agent = found.protocol === "https:" ? new secureHttp.Agent({ ...kept, ...tls }) : new plainHttp.Agent(kept);
  }

  /**
   * Sends a request with a JSON text and reads its answer. A redirect is an answer, and is not followed.
   *
   * @throws {ConnectionFailed} there is no answer; the request may or may not have been carried out.
   * @throws {Untrusted} the server's certificate is not trusted, and nothing was sent.
   * @throws {Unencodable} no head can have what is in this one, and nothing was sent.
   */
  async request(method: string, path: string, text?: string, options: RequestOptions = {}): Promise<Response> {
    const data = text === undefined ? undefined : Buffer.from(text);
    for (;;) {
      const sent = await this.send(method, path, data, options);
      if (sent !== "stale") return sent;
    }
  }

  /**
   * Asks for something whose body is read piece by piece. No piece may take longer than the silence.
   *
   * @throws {ConnectionFailed} there is no answer; `Untrusted` as for a request.
   */
  stream(path: string, options: RequestOptions & { silentMs: number }): Promise<Stream> {
    return new Promise((resolve, reject) => {
      const { request } = this.url.protocol === "https:" ? secureHttp : plainHttp;
      const { signal } = options;
      const asked = request({ ...this.options("GET", path, undefined, options), ...(signal === undefined ? {} : { signal }) });
      asked.setTimeout(options.silentMs, () => asked.destroy(new Error(`silent for ${options.silentMs / 1_000} s`)));
      asked.on("error", (error) => reject(this.failure("GET", path, error)));
      asked.on("response", (answer) => resolve(new Stream(answer)));
      asked.end();
    });
  }

  private failure(method: string, path: string, error: Error & { code?: string }): ConnectionFailed {
    const said = `${method} ${path} at ${this.url.host}: ${error.message || error.code || error.name}`;
    if (!UNTRUSTED.has(error.code ?? "")) return new ConnectionFailed(said, { cause: error });
    const untrusted = `${said} (${error.code}): the server's certificate is not trusted; ${cure(error.code)}`;
    return new Untrusted(untrusted, { cause: error });
  }

  /** Closes what is kept. */
  close(): void {
    this.agent.destroy();
  }

  private send(method: string, path: string, data: Buffer | undefined, options: RequestOptions): Promise<Response | "stale"> {
    return new Promise((resolve, reject) => {
      const { request } = this.url.protocol === "https:" ? secureHttp : plainHttp;
      let asked: plainHttp.ClientRequest;
      let answered = false;
      // What a server does once however often it is asked.
      const repeatable = method === "GET" || options.headers?.["Idempotency-Key"] !== undefined;
      const over = (settle: () => void) => {
        clearTimeout(timer);
        options.signal?.removeEventListener("abort", aborted);
        settle();
      };
      const failed = (error: Error & { code?: string }) => {
        // It was likely closed while it was idle, and the next connection is tried. But the server may also have carried the
        // request out before it died, and then a second one may be refused for what the first did: whoever asked must know
        // that it was sent.
        const closed = !answered && asked?.reusedSocket && STALE.has(error.code ?? "");
        if (closed && repeatable) return over(() => resolve("stale"));
        return over(() => reject(this.failure(method, path, error)));
      };
      const timeoutMs = options.timeoutMs ?? 30_000;
      const timer = setTimeout(() => {
        over(() => reject(new ConnectionFailed(`${method} ${path}: no answer within ${timeoutMs / 1_000} s`)));
        asked?.destroy();
      }, timeoutMs);
      const aborted = () => {
        over(() => reject(new ConnectionFailed(`${method} ${path}: nobody waits for the answer any more`)));
        asked?.destroy();
      };
      try {
        asked = request(this.options(method, path, data, options));
      } catch (error) {
        // What is to be sent is at fault, and not the way to the server: no retry cures it.
        return over(() => reject(new Unencodable(`the head of a request: ${saying(error)}`, { cause: error })));
      }
      if (options.signal?.aborted) return aborted();
      options.signal?.addEventListener("abort", aborted, { once: true });
      asked.on("error", failed);
      asked.on("response", (answer) => {
        answered = true;
        read(answer).then((response) => over(() => resolve(response)), failed);
      });
      asked.end(data);
    });
  }

  private options(
    method: string,
    path: string,
    data: Buffer | undefined,
    options: RequestOptions,
  ): secureHttp.RequestOptions {
    const headers: Record<string, string | number> = { Accept: "application/json", ...options.headers };
    if (data !== undefined) headers["Content-Type"] = "application/json";
    if (data !== undefined || !["GET", "DELETE"].includes(method)) headers["Content-Length"] = data?.length ?? 0;
    if (this.token !== undefined) headers["Authorization"] = `Bearer ${this.token}`;
    // An address in brackets is written without them where no URL is expected.
    const hostname = this.url.hostname.replace(/^\[(.*)\]$/, "$1");
    return { method, hostname, port: this.url.port, path: this.prefix + path, headers, agent: this.agent };
  }
}

/** An answer whose body is read piece by piece. */
export class Stream {
  readonly status: number;

  constructor(private readonly answer: plainHttp.IncomingMessage) {
    this.status = answer.statusCode ?? 0;
    // Whoever reads it hears of it; an error after that is nobody's.
    answer.on("error", () => {});
  }

  /** A header that is there once. */
  header(name: string): string {
    const found = this.answer.headers[name];
    return typeof found === "string" ? found : "";
  }

  /** The body. */
  pieces(): AsyncIterable<Buffer> {
    return this.answer as AsyncIterable<Buffer>;
  }

  /** The whole answer. */
  rest(): Promise<Response> {
    return read(this.answer);
  }

  /** Reads no more. */
  close(): void {
    this.answer.destroy();
  }
}

/** What to do about a certificate. */
function cure(code: string | undefined): string {
  if (code === "CERT_HAS_EXPIRED" || code === "CERT_NOT_YET_VALID") {
    return "renew the server's certificate, or set the clock of this machine";
  }
  if (code === "ERR_TLS_CERT_ALTNAME_INVALID" || code === "HOSTNAME_MISMATCH") {
    return "ask the server by a name that its certificate has";
  }
  return 'trust its authority with { tls: { ca: readFileSync("ca.pem") } }, or by NODE_EXTRA_CA_CERTS';
}

async function read(answer: plainHttp.IncomingMessage): Promise<Response> {
  const parts: Buffer[] = [];
  let size = 0;
  for await (const part of answer as AsyncIterable<Buffer>) {
    size += part.length;
    if (size > BODY_BYTES_MAX) throw new RangeError(`the body of the answer has more than ${BODY_BYTES_MAX} bytes`);
    parts.push(part);
  }
  if (!answer.complete) throw new Error("the answer was cut off");
  return new Response(answer.statusCode ?? 0, answer.headers, Buffer.concat(parts).toString());
}

/** The problem in an answer, also where a proxy answered and not the server. */
export function problemOf(answer: Response): Problem {
  if (answer.status < 400) {
    const detail = `expected an answer, found a redirect to ${describe(answer.header("location") || "nowhere")}`;
    const what_to_do = "give the url of the server itself: no redirect is followed with a token or a body";
    return Problem.of({ status: answer.status, code: "redirected", detail, what_to_do }, answer.status);
  }
  if (answer.header("content-type").includes("json")) {
    try {
      const found = loads(answer.text);
      if (typeof found === "object" && found !== null) return Problem.of(found as ProblemBody, answer.status);
    } catch {
      // It is no JSON, whatever it says of itself, and is told as it is.
    }
  }
  return Problem.of({ status: answer.status, code: "internal", detail: answer.text.slice(0, 200) }, answer.status);
}
