// The program that `tailrace conformance` drives: a command as JSON on each line, and an answer on a line for each.

import readline from "node:readline";
import { connect } from "./node.mjs";

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
