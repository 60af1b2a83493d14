// A client for Node.js in one file, without dependencies, written from docs/binary-protocol.md.
//
//     import { connect } from "./node.mjs";
//     const client = await connect("127.0.0.1:5050");
//     const { seq } = await client.publish("orders", "one", { headers: { shop: "7" } });
//     for await (const message of client.subscribe("orders")) console.log(message.seq, `${message.payload}`);

import net from "node:net";

const OP = { HELLO: 1, WELCOME: 2, OPEN: 3, OPENED: 4, PUBLISH: 5, PUBLISHED: 6, SUBSCRIBE: 7, SUBSCRIBED: 8,
  UNSUBSCRIBE: 9, PING: 10, PONG: 11, ERROR: 12, CHUNK: 13, CREDIT: 14, ENDED: 15, CLOSE: 16, CONSUME: 26, CONSUMED: 27,
  GET: 28, GOT: 29 };
const RECONNECT_MS = 100, RECONNECTS_MAX = 100, CREDIT_BYTES = 1 << 20, ENVELOPE_MAX_BYTES = 1 << 27;

export class BrokerError extends Error {
  constructor({ code, text }) { super(`${code}: ${text}`); this.code = code; }
}

// msgpack, as much of it as the protocol uses: no negative numbers, fractions and booleans are sent.
const head = (kind, size) => { const b = Buffer.alloc(5); b[0] = kind; b.writeUInt32BE(size, 1); return b; };

function pack(item) {
  if (typeof item === "string") return Buffer.concat([head(0xdb, Buffer.byteLength(item)), Buffer.from(item)]);
  if (Buffer.isBuffer(item)) return Buffer.concat([head(0xc6, item.length), item]);
  if (Array.isArray(item)) return Buffer.concat([head(0xdd, item.length), ...item.map(pack)]);
  if (typeof item === "number") // 64 bits
    return Buffer.concat([head(0xcf, Math.floor(item / 2 ** 32)), head(0, item % 2 ** 32).subarray(1)]);
  const rows = Object.entries(item).filter(([, value]) => value !== undefined);
  return Buffer.concat([head(0xdf, rows.length), ...rows.flat().map(pack)]);
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

function frame(payload, headers) {
  const metadata = headers ? pack({ h: headers }) : Buffer.alloc(0), head = Buffer.alloc(32);
  head.writeUInt32LE(32 + metadata.length + payload.length, 0);
  head.writeUInt16LE(metadata.length, 30);
  return Buffer.concat([head, metadata, payload]);
}

function* frames(data) {
  for (let at = 0; at < data.length; at += data.readUInt32LE(at)) {
    const start = at + 32 + data.readUInt16LE(at + 30), nbytes = data.readUInt32LE(at);
    const headers = (start > at + 32 && unpack(data.subarray(at + 32, start)).h) || {};
    yield { seq: Number(data.readBigUInt64LE(at + 8)), timeUs: Number(data.readBigUInt64LE(at + 16)),
      epoch: data.readUInt32LE(at + 24), headers, nbytes, payload: data.subarray(start, at + nbytes) };
  }
}

/** A client of the broker at `HOST:PORT`. It connects again by itself; a publish without an answer is rejected then. */
export async function connect(address, options = {}) {
  const client = new Client(address, options);
  await (client.up = client.dial());
  client.closed = false; // from now on a lost connection is made again
  return client;
}

class Client {
  constructor(address, { token } = {}) {
    const colon = address.lastIndexOf(":");
    Object.assign(this, { host: address.slice(0, colon), port: Number(address.slice(colon + 1)), token, lastId: 0,
      closed: true, handles: new Map(), waiting: new Map(), subscriptions: new Map() });
  }

  dial() {
    return new Promise((resolve, reject) => {
      const socket = (this.socket = net.connect({ host: this.host, port: this.port, noDelay: true }));
      let rest = Buffer.alloc(0);
      this.waiting.set(0, { resolve, reject }); // WELCOME has no id
      socket.on("connect", () => {
        this.send(OP.HELLO, pack({ version: 1, features: ["consumers"], client: "example-node/1", token: this.token }));
        this.handles.clear();
        for (const [id, each] of this.subscriptions) this.begin(id, each);
      });
      socket.on("data", (data) => { rest = this.take(rest.length ? Buffer.concat([rest, data]) : data); });
      socket.on("error", reject);
      socket.on("close", () => this.lost());
    });
  }

  lost() {
    for (const { reject } of this.waiting.values()) reject(new Error("the connection was lost"));
    this.waiting.clear();
    if (this.closed || this.dialling) return;
    this.dialling = true;
    this.up = this.dialAgain().finally(() => { this.dialling = false; });
    this.up.catch((error) => { for (const each of this.subscriptions.values()) each.end(error); });
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
    return new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
  }

  answer(id, outcome, how = "resolve") {
    this.waiting.get(id)?.[how](outcome);
    this.waiting.delete(id);
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
      const seq = Number(body.readBigUInt64LE(4)), subscribers = body.readUInt32LE(16);
      return this.answer(body.readUInt32LE(0), { seq, subscribers });
    }
    if (op === OP.CHUNK) return this.subscriptions.get(body.readUInt32LE(0))?.take(body.subarray(4));
    if (op === OP.GOT) return this.answer(body.readUInt32LE(0), body);
    if (op === OP.PING) return this.send(OP.PONG, body);
    const map = unpack(body), error = map.code ? new BrokerError(map) : null;
    if (op === OP.SUBSCRIBED) this.subscriptions.get(map.id)?.begun(map);
    else if (op === OP.WELCOME || op === OP.CONSUMED) this.answer(map.id ?? 0, map);
    else if (op === OP.ENDED || (map.op === OP.SUBSCRIBE && map.code !== "trimmed"))
      this.subscriptions.get(map.id)?.end(error);
    else if (error) this.answer(map.id, error, "reject");
  }

  /** Publish one message; resolves to its `seq` when it is where `ack` wants it (0: at once, without a seq). */
  async publish(stream, payload, { headers, ack = 1, replicas = 0 } = {}) {
    await this.up;
    const head = Buffer.alloc(12), id = ++this.lastId;
    if (!this.handles.has(stream)) { // a refusal of OPEN has the id of the publish, and so is its answer
      this.handles.set(stream, id);
      this.send(OP.OPEN, pack({ id, stream }));
    }
    head.writeUInt32LE(id, 0); head[4] = ack; head[5] = replicas; head[6] = 1;
    head.writeUInt32LE(this.handles.get(stream), 8);
    const body = Buffer.concat([head, frame(Buffer.from(payload), headers)]);
    if (ack === 0) return this.send(OP.PUBLISH, body);
    return this.ask(OP.PUBLISH, id, body).catch((error) => {
      if (this.handles.get(stream) === id) this.handles.delete(stream);
      throw error;
    });
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
    this.send(OP.SUBSCRIBE, pack({ id, stream, from: place, end: live ? undefined : ["now", 0], credit: CREDIT_BYTES }));
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
    return [...frames(body.subarray(16 + 20 * body.readUInt16LE(4) + 16 * body.readUInt16LE(6)))];
  }

  close() {
    this.closed = true;
    this.send(OP.CLOSE, Buffer.alloc(0));
    this.socket.end();
  }
}
