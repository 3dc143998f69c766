// Runs in the browser: each check on a model of its own, reported to the server as it ends (xtask/src/web.rs).

import init, { Model } from "/build/gristmill_web.js";

const SMALL = { chunk: 8 };
// Together they have every op. The first runs at the default chunk, with the plans of all sizes, which take a software
// adapter long to compile; the others in small steps.
const GOLDENS = [["llama", {}], ["qwen3_moe", SMALL], ["gemma3_text", SMALL], ["lfm2", SMALL]];
const SECONDS = 180;

function equal(found, expected, what) {
    const [a, b] = [found, expected].map((value) => JSON.stringify(value));
    if (a !== b) throw new Error(`${what} is ${a}, expected ${b}`);
}

async function failure(promise, words) {
    const problem = await promise.then(() => null, (error) => String(error));
    if (problem === null) throw new Error("it succeeded");
    if (!words.test(problem)) throw new Error(`the error is "${problem}", expected ${words}`);
    return problem;
}

async function bytes(name) {
    const answer = await fetch(`/goldens-gguf/${name}.gguf`);
    if (!answer.ok) throw new Error(`${name}.gguf: ${answer.status}`);
    return new Uint8Array(await answer.arrayBuffer());
}

async function expected(name) {
    const { input_ids, greedy_ids } = await (await fetch(`/goldens/${name}/expected.json`)).json();
    return { prompt: new Uint32Array(input_ids), greedy: greedy_ids };
}

async function greedy(model, { prompt, greedy }) {
    return Array.from(await model.generate(prompt, { maxTokens: greedy.length, ignoreEnd: true }));
}

// The answer of an independent implementation, token by token.
async function golden(name, options) {
    const answer = await expected(name);
    const model = await Model.load(await bytes(name), { precision: "exact", ...options });
    const tokens = await greedy(model, answer);
    equal(tokens, answer.greedy, "the continuation");
    // A second request finds the cache as the first did.
    equal(await greedy(model, answer), answer.greedy, "the second continuation");
    return `${tokens.length} greedy tokens are the golden's`;
}

// The kernels of the other precision: no golden, but an answer that begins as the exact one.
async function fast(name) {
    const answer = await expected(name);
    const model = await Model.load(await bytes(name), { precision: "fast", ...SMALL });
    const tokens = await greedy(model, answer);
    equal(tokens.length, answer.greedy.length, "the number of tokens");
    equal(tokens[0], answer.greedy[0], "the first token");
    const differs = tokens.findIndex((id, i) => id !== answer.greedy[i]);
    return `the first ${differs < 0 ? tokens.length : differs} tokens are those of the exact computation`;
}

async function text() {
    const model = await Model.load(await bytes("llama"), SMALL);
    const prompt = "Hello, world";
    const seen = [];
    const onToken = (id, text) => { seen.push([id, text]); };
    const tokens = Array.from(await model.generate(prompt, { maxTokens: 8, ignoreEnd: true, onToken }));
    equal(seen.map(([id]) => id), tokens, "the tokens called back with");
    equal(seen.every(([, text]) => typeof text === "string"), true, "that all pieces are text");
    equal(Array.from(await model.generate(model.encode(prompt), { maxTokens: 8, ignoreEnd: true })), tokens,
        "the continuation of the same prompt in ids");
    equal((await model.generate(prompt, { maxTokens: 8, ignoreEnd: true, onToken: () => false })).length, 1,
        "the number of tokens after which `false` ended it");

    const running = model.generate(prompt, { maxTokens: 2 });
    await failure(model.generate(prompt, { maxTokens: 2 }), /another request/);
    await running;
    await failure(model.generate(new Uint32Array(), {}), /empty/);
    await failure(model.generate(new Uint32Array([9999]), {}), /vocabulary/);
    await failure(model.generate([1, 2], {}), /Uint32Array/);
    await failure(model.generate(prompt, { maxTokens: -1 }), /maxTokens/);
    await failure(model.generate(prompt, { onToken: () => { throw new Error("enough"); } }), /enough/);
    equal((await model.generate(prompt, { maxTokens: 2, ignoreEnd: true })).length, 2, "the tokens after all that");
    await failure(Model.load(new Uint8Array([1, 2, 3]), {}), /header/);
    await failure(Model.load([await bytes("llama"), await bytes("llama")], {}), /not a shard/);
    await failure(Model.load("llama.gguf", {}), /Uint8Array/);
    await failure(Model.load(await bytes("llama"), { precision: "best" }), /precision/);
    return `"${seen.map(([, text]) => text).join("")}"`;
}

// A kernel that the browser refuses fails the request, with the reason; what is made of it is invalid without a sound.
async function refused() {
    const create = GPUDevice.prototype.createShaderModule;
    let model;
    GPUDevice.prototype.createShaderModule = function (description) {
        const spoilt = description.label?.startsWith("matmul");
        return create.call(this, spoilt ? { ...description, code: `${description.code}\nlet x = ;` } : description);
    };
    try {
        model = await Model.load(await bytes("llama"), SMALL);
    } finally {
        GPUDevice.prototype.createShaderModule = create;
    }
    const answer = await expected("llama");
    const problem = await failure(greedy(model, answer), /matmul/);
    // The device is opened anew for the next request, and the browser refuses nothing any more.
    equal(await greedy(model, answer), answer.greedy, "the tokens of the next request");
    return problem.split("\n")[0];
}

// A device that goes away in the middle of a request fails it; another one serves the next.
async function lost() {
    const request = GPUAdapter.prototype.requestDevice;
    let device, model;
    GPUAdapter.prototype.requestDevice = async function (...args) {
        device = await request.apply(this, args);
        return device;
    };
    try {
        model = await Model.load(await bytes("llama"), SMALL);
    } finally {
        GPUAdapter.prototype.requestDevice = request;
    }
    const answer = await expected("llama");
    const { prompt } = answer;
    let count = 0;
    const onToken = () => { if (++count === 3) device.destroy(); };
    const problem = await failure(model.generate(prompt, { ignoreEnd: true, onToken }), /lost/);
    const next = Array.from(await model.generate(prompt, { maxTokens: answer.greedy.length, ignoreEnd: true }));
    equal(next, answer.greedy, "the tokens of the next request");
    return problem;
}

// Without an adapter, the error says what a page needs.
async function absent() {
    const request = GPU.prototype.requestAdapter;
    GPU.prototype.requestAdapter = async () => null;
    try {
        return await failure(Model.load(await bytes("llama"), SMALL), /WebGPU/);
    } finally {
        GPU.prototype.requestAdapter = request;
    }
}

const checks = [
    ...GOLDENS.map(([name, options]) => [`golden ${name}`, () => golden(name, options)]),
    ["fast precision", () => fast("llama")],
    ["text and arguments", text],
    ["a kernel is refused", refused],
    ["the device is lost", lost],
    ["there is no adapter", absent],
];

async function run(check) {
    const late = new Promise((_, no) => setTimeout(() => no(new Error(`no answer after ${SECONDS} s`)), 1000 * SECONDS));
    return Promise.race([check(), late]);
}

async function report(result) {
    await fetch("/report", { method: "POST", body: JSON.stringify(result) });
}

async function timed(name, check) {
    const start = performance.now();
    const [passed, note] = await run(check).then((note) => [true, note], (error) => [false, String(error)]);
    await report({ name, passed, note, seconds: (performance.now() - start) / 1000 });
}

await timed("the module is loaded", async () => { await init(); });
for (const [name, check] of checks) await timed(name, check);
const info = (await navigator.gpu?.requestAdapter())?.info;
await report({ done: true, adapter: info ? `${info.vendor} ${info.architecture} ${info.description}`.trim() : "none" });
