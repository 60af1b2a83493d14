// A client for Node.js in one file, without dependencies, written from docs/binary-protocol.md.
//
//     import { connect } from "./node.mjs";
//     const client = await connect("127.0.0.1:5050");
//     const { seq } = await client.publish("orders", "one", { headers: { shop: "7" } });
//     for await (const message of client.subscribe("orders")) console.log(message.seq, `${message.payload}`);
//
// `node node.mjs` speaks the language of `tailrace conformance` on its standard input and output.

import net from "node:net";
import readline from "node:readline";
import { fileURLToPath } from "node:url";

const OP = { HELLO: 1, WELCOME: 2, OPEN: 3, OPENED: 4, PUBLISH: 5, PUBLISHED: 6, SUBSCRIBE: 7, SUBSCRIBED: 8,
  UNSUBSCRIBE: 9, PING: 10, PONG: 11, ERROR: 12, CHUNK: 13, CREDIT: 14, ENDED: 15, CLOSE: 16, CONSUME: 26, CONSUMED: 27,
  GET: 28, GOT: 29 };
const RECONNECT_MS = 100, RECONNECTS_MAX = 100, CREDIT_BYTES = 1 << 20, ENVELOPE_MAX_BYTES = 1 << 27;

export class BrokerError extends Error {
  constructor({ code, text }) { super(`${code}: ${text}`); this.code = code; }
}

// --- msgpack, as much of it as the protocol uses ---

function pack(value) {
  const out = [];
  const head = (count, fix, fixMax, wide) => {
    if (count <= fixMax) return out.push(Buffer.from([fix | count]));
    const bytes = Buffer.alloc(5);
    bytes[0] = wide; bytes.writeUInt32BE(count, 1); out.push(bytes);
  };
  const add = (item) => {
    if (item === null || item === undefined) out.push(Buffer.from([0xc0]));
    else if (typeof item === "boolean") out.push(Buffer.from([item ? 0xc3 : 0xc2]));
    else if (typeof item === "number") {
      const bytes = Buffer.alloc(9);
      bytes[0] = Number.isInteger(item) ? 0xcf : 0xcb;
      if (bytes[0] === 0xcf) bytes.writeBigUInt64BE(BigInt(item), 1); else bytes.writeDoubleBE(item, 1);
      out.push(bytes);
    } else if (typeof item === "string") { head(Buffer.byteLength(item), 0xa0, 31, 0xdb); out.push(Buffer.from(item)); }
    else if (Buffer.isBuffer(item)) { head(item.length, 0, -1, 0xc6); out.push(item); }
    else if (Array.isArray(item)) { head(item.length, 0x90, 15, 0xdd); item.forEach(add); }
    else {
      const rows = Object.entries(item).filter(([, each]) => each !== undefined);
      head(rows.length, 0x80, 15, 0xdf);
      for (const [key, each] of rows) { add(key); add(each); }
    }
  };
  add(value);
  return Buffer.concat(out);
}

const NUMBERS = { 0xca: ["FloatBE", 4], 0xcb: ["DoubleBE", 8], 0xcc: ["UInt8", 1], 0xcd: ["UInt16BE", 2],
  0xce: ["UInt32BE", 4], 0xcf: ["BigUInt64BE", 8], 0xd0: ["Int8", 1], 0xd1: ["Int16BE", 2], 0xd2: ["Int32BE", 4],
  0xd3: ["BigInt64BE", 8] };
const LENGTHS = { 0xc4: [0xcc, "bytes"], 0xc5: [0xcd, "bytes"], 0xc6: [0xce, "bytes"], 0xd9: [0xcc, "text"],
  0xda: [0xcd, "text"], 0xdb: [0xce, "text"], 0xdc: [0xcd, "list"], 0xdd: [0xce, "list"], 0xde: [0xcd, "map"],
  0xdf: [0xce, "map"] };

function unpack(data) {
  let at = 0;
  const number = ([type, size]) => Number(data[`read${type}`]((at += size) - size));
  const read = {
    bytes: (size) => data.subarray(at, (at += size)),
    text: (size) => read.bytes(size).toString(),
    list: (size) => Array.from({ length: size }, next),
    map: (size) => Object.fromEntries(Array.from({ length: size }, () => [next(), next()])),
  };
  const next = () => {
    const kind = data[at++];
    if (kind < 0x80) return kind;
    if (kind < 0x90) return read.map(kind & 15);
    if (kind < 0xa0) return read.list(kind & 15);
    if (kind < 0xc0) return read.text(kind & 31);
    if (kind >= 0xe0) return kind - 256;
    if (kind in NUMBERS) return number(NUMBERS[kind]);
    if (kind in LENGTHS) return read[LENGTHS[kind][1]](number(NUMBERS[LENGTHS[kind][0]]));
    if (kind === 0xc0) return null;
    if (kind === 0xc2 || kind === 0xc3) return kind === 0xc3;
    throw new Error(`msgpack: byte ${kind} is not one that the protocol uses`);
  };
  return next();
}

// --- frames ---

function frame(payload, headers) {
  const metadata = headers ? pack({ h: headers }) : Buffer.alloc(0);
  const head = Buffer.alloc(32);
  head.writeUInt32LE(32 + metadata.length + payload.length, 0);
  head.writeUInt16LE(metadata.length, 30);
  return Buffer.concat([head, metadata, payload]);
}

function* frames(data) {
  for (let at = 0; at < data.length; at += data.readUInt32LE(at)) {
    const metadataEnd = at + 32 + data.readUInt16LE(at + 30);
    const metadata = metadataEnd > at + 32 ? unpack(data.subarray(at + 32, metadataEnd)) : {};
    yield { seq: Number(data.readBigUInt64LE(at + 8)), timeUs: Number(data.readBigUInt64LE(at + 16)),
      epoch: data.readUInt32LE(at + 24), headers: metadata.h ?? {}, nbytes: data.readUInt32LE(at),
      payload: data.subarray(metadataEnd, at + data.readUInt32LE(at)) };
  }
}

// --- the client ---

/** A client of the broker at `HOST:PORT`. It connects again by itself; a publish without an answer is rejected then. */
export async function connect(address, options = {}) {
  const client = new Client(address, options);
  await (client.up = client.dial());
  return client;
}

class Client {
  constructor(address, { token } = {}) {
    const colon = address.lastIndexOf(":");
    Object.assign(this, { host: address.slice(0, colon), port: Number(address.slice(colon + 1)), token, lastId: 0,
      closed: false, handles: new Map(), waiting: new Map(), subscriptions: new Map() });
  }

  dial() {
    return new Promise((resolve, reject) => {
      const socket = (this.socket = net.connect({ host: this.host, port: this.port, noDelay: true }));
      let parts = [];
      this.greeted = { resolve, reject };
      socket.on("connect", () => {
        this.send(OP.HELLO, pack({ version: 1, features: ["consumers"], client: "example-node/1", token: this.token }));
        this.handles.clear();
        for (const [id, each] of this.subscriptions) this.begin(id, each);
      });
      socket.on("data", (data) => {
        parts.push(data);
        parts = [this.take(parts.length === 1 ? data : Buffer.concat(parts))];
      });
      socket.on("error", (error) => reject(error));
      socket.on("close", () => { reject(new Error("the broker closed")); this.lost(); });
    });
  }

  lost() {
    for (const { reject } of this.waiting.values()) reject(new Error("the connection was lost"));
    this.waiting.clear();
    if (this.closed || this.dialling) return;
    this.dialling = true;
    this.up = this.dialAgain().finally(() => { this.dialling = false; });
    this.up.catch(() => { for (const each of this.subscriptions.values()) each.end(new Error("the broker is away")); });
  }

  async dialAgain() {
    for (let tries = 1; ; tries++) {
      await new Promise((resolve) => setTimeout(resolve, RECONNECT_MS));
      try { return await this.dial(); } catch (error) { if (tries === RECONNECTS_MAX) throw error; }
    }
  }

  send(op, body) {
    const head = Buffer.alloc(5);
    head[0] = op; head.writeUInt32LE(body.length, 1);
    this.socket.write(Buffer.concat([head, body]));
  }

  ask(op, id, body) {
    this.send(op, body);
    return new Promise((resolve, reject) => this.waiting.set(`${op} ${id}`, { resolve, reject }));
  }

  answer(op, id, outcome, how = "resolve") {
    this.waiting.get(`${op} ${id}`)?.[how](outcome);
    this.waiting.delete(`${op} ${id}`);
  }

  /** Handle all whole envelopes; returns the rest of the bytes. */
  take(data) {
    let at = 0;
    while (data.length - at >= 5) {
      const length = data.readUInt32LE(at + 1);
      if (length > ENVELOPE_MAX_BYTES) { this.socket.destroy(); break; }
      if (data.length - at - 5 < length) break;
      this.receive(data[at], data.subarray(at + 5, at + 5 + length));
      at += 5 + length;
    }
    return data.subarray(at);
  }

  receive(op, body) {
    if (op === OP.PUBLISHED) {
      const [seq, subscribers] = [Number(body.readBigUInt64LE(4)), body.readUInt32LE(16)];
      this.answer(OP.PUBLISH, body.readUInt32LE(0), { seq, subscribers });
    } else if (op === OP.CHUNK) this.subscriptions.get(body.readUInt32LE(0))?.take(body.subarray(4));
    else if (op === OP.GOT) this.answer(OP.GET, body.readUInt32LE(0), body);
    else if (op === OP.PING) this.send(OP.PONG, Buffer.alloc(0));
    else if (op === OP.PONG) return;
    else {
      const map = unpack(body);
      if (op === OP.SUBSCRIBED) this.subscriptions.get(map.id)?.begun(map);
      else if (op === OP.WELCOME) this.greeted.resolve();
      else if (op === OP.OPENED) this.answer(OP.OPEN, map.id);
      else if (op === OP.CONSUMED) this.answer(OP.CONSUME, map.id, map);
      else if (op === OP.ENDED) this.subscriptions.get(map.id)?.end(map.code ? new BrokerError(map) : null);
      else if (op === OP.ERROR) this.fail(map);
    }
  }

  fail(map) {
    const error = new BrokerError(map);
    if (map.op === 0 || map.op === OP.HELLO) this.greeted.reject(error);
    if (map.op === OP.SUBSCRIBE && map.code !== "trimmed") this.subscriptions.get(map.id)?.end(error);
    this.answer(map.op, map.id, error, "reject");
  }

  /** The number that stands for a stream on this connection. */
  handle(stream) {
    if (!this.handles.has(stream)) {
      const id = ++this.lastId;
      const opened = this.ask(OP.OPEN, id, pack({ id, stream })).then(() => id);
      this.handles.set(stream, opened);
      opened.catch(() => { if (this.handles.get(stream) === opened) this.handles.delete(stream); });
    }
    return this.handles.get(stream);
  }

  /** Publish one message; resolves to its `seq` when it is where `ack` wants it (0: at once, without a seq). */
  async publish(stream, payload, { headers, ack = 1, replicas = 0 } = {}) {
    await this.up;
    const handle = await this.handle(stream);
    const head = Buffer.alloc(12), request = ++this.lastId;
    head.writeUInt32LE(request, 0); head[4] = ack; head[5] = replicas; head.writeUInt16LE(1, 6);
    head.writeUInt32LE(handle, 8);
    const body = Buffer.concat([head, frame(Buffer.from(payload), headers)]);
    if (ack === 0) return this.send(OP.PUBLISH, body);
    return this.ask(OP.PUBLISH, request, body);
  }

  /** The messages from seq `from` on (or "new"), live ones too; without `live` up to the end that there is now. */
  async *subscribe(stream, { from = 0, live = true } = {}) {
    const id = ++this.lastId, queue = [];
    let wake = () => {}, ended = false, failure = null;
    const self = { stream, live, place: from === "new" ? ["new", 0] : ["seq", from],
      begun: ({ next_seq }) => { self.place = ["seq", next_seq]; },
      take: (data) => {
        queue.push(...frames(data));
        self.place = ["seq", queue.at(-1).seq + 1]; // a new connection goes on there
        wake();
      },
      end: (error) => { ended = true; failure = error; wake(); } };
    await this.up;
    this.subscriptions.set(id, self); // a new connection begins it again at its place
    this.begin(id, self);
    try {
      for (;;) {
        while (queue.length) {
          const message = queue.shift(), credit = Buffer.alloc(12);
          credit.writeUInt32LE(id, 0); credit.writeBigUInt64LE(BigInt(message.nbytes), 4);
          this.send(OP.CREDIT, credit);
          yield message;
        }
        if (failure) throw failure;
        if (ended) return;
        await new Promise((resolve) => { wake = resolve; });
      }
    } finally {
      this.subscriptions.delete(id);
      if (!ended && !this.closed) this.send(OP.UNSUBSCRIBE, pack({ id }));
    }
  }

  begin(id, { stream, place, live }) {
    const end = live ? undefined : ["now", 0];
    this.send(OP.SUBSCRIBE, pack({ id, stream, from: place, end, credit: CREDIT_BYTES }));
  }

  /** Make a durable consumer, unless there is one. */
  async consume(stream, name, { from = 0 } = {}) {
    await this.up;
    const id = ++this.lastId;
    return this.ask(OP.CONSUME, id, pack({ id, do: "create", stream, name, from: ["seq", from] }));
  }

  /** Report the messages that are finished, and take up to `max` more; resolves to them. */
  async get(stream, name, member, { finished = [], failed = [], max = 100, waitMs = 0 } = {}) {
    await this.up;
    const id = ++this.lastId;
    const body = await this.ask(OP.GET, id, pack({ id, stream, name, member, max_messages: max, wait_ms: waitMs,
      finished: finished.map(({ seq, epoch }) => [seq, seq, epoch]),
      failed: failed.map(({ seq, epoch }) => [seq, epoch, "failed"]) }));
    const [runs, stale] = [body.readUInt16LE(4), body.readUInt16LE(6)];
    return [...frames(body.subarray(16 + 20 * runs + 16 * stale))];
  }

  close() {
    this.closed = true;
    this.send(OP.CLOSE, Buffer.alloc(0));
    this.socket.end();
  }
}

// --- for `tailrace conformance`: a command as JSON on each line, and an answer on a line for each ---

const shown = ({ seq, epoch, headers, payload }) => ({ seq, epoch, headers, payload: payload.toString("base64") });
const DEEDS = {
  connect: async (_, { address, token }) => ({ client: await connect(address, { token }) }),
  publish: ({ client }, { stream, payload, ...options }) =>
    client.publish(stream, Buffer.from(payload, "base64"), options),
  read: async ({ client }, { stream, from, live, count }) => {
    const messages = [];
    for await (const each of client.subscribe(stream, { from, live })) if (messages.push(shown(each)) === count) break;
    return { messages };
  },
  consume: ({ client }, { stream, name }) => client.consume(stream, name),
  get: async ({ client }, { stream, name, member, ...options }) => {
    return { messages: (await client.get(stream, name, member, options)).map(shown) };
  },
  close: ({ client }) => client.close(),
};

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const state = {};
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { do: deed, ...fields } = JSON.parse(line);
    let answer;
    try {
      answer = (await DEEDS[deed](state, fields)) ?? {};
      if (answer.client) { state.client = answer.client; answer = {}; }
    } catch (error) { answer = { error: error.code ?? "lost", text: error.message }; }
    console.log(JSON.stringify(answer));
  }
  process.exit(0);
}
