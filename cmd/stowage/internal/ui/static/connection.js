// The stream of what changes. It is opened again when it is lost, and begins with all storage each time.

const silence = 30_000; // heartbeats come every 10 seconds
const firstPause = 500;
const maxPause = 10_000;

// AccessError is the error of a browser that may not read.
class AccessError extends Error {}

// explain throws a sentence for the error of a request: a browser has none for a server that does not answer.
function explain(error) {
  throw error instanceof TypeError ? new Error("the command stowage ui does not answer: is it still running?") : error;
}

// request returns the answer to a request, which is not an error.
async function request(path, signal) {
  const answer = await fetch(`api/${path}`, { signal }).catch(explain);
  if (answer.status === 404) { // each command has a path of its own
    throw new AccessError("this page is of a command that has ended: open the link of the new one");
  }
  if (!answer.ok) {
    throw new (answer.status === 401 ? AccessError : Error)((await answer.json()).error);
  }
  return answer;
}

// read returns what the answer to a request has.
export async function read(path, signal) {
  return (await request(path, signal)).json();
}

// lines calls each with each line of the stream, until it ends with an error.
async function lines(each, signal) {
  const answer = await request("watch", signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = [];
  for (;;) {
    const { value, done } = await reader.read().catch(explain);
    if (done) {
      throw new Error("the stream has ended");
    }
    // A line can be in many parts: joining them only at its end takes linear time.
    const parts = value.split("\n");
    for (const part of parts.slice(0, -1)) {
      each(JSON.parse(rest.join("") + part));
      rest = [];
    }
    rest.push(parts.at(-1));
  }
}

// Connection calls take with each change, live when there is a connection, and lost with an error when there is
// none any more; with final if no attempt follows.
export class Connection {
  constructor({ take, live, lost }) {
    Object.assign(this, { take, live, lost });
    this.pause = firstPause;
    this.wake = () => {};
    addEventListener("online", () => this.wake());
  }

  async run() {
    for (;;) {
      try {
        await this.once();
      } catch (error) {
        const final = error instanceof AccessError;
        this.lost(error.message, final);
        if (final) {
          return;
        }
      }
      await new Promise((resolve) => {
        this.wake = resolve;
        setTimeout(resolve, this.pause * (0.5 + Math.random() / 2));
      });
      this.pause = Math.min(2 * this.pause, maxPause);
    }
  }

  // once reads one stream to its end.
  async once() {
    const abort = new AbortController();
    let timer;
    const listen = () => {
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(new Error("no sign of life for 30 seconds")), silence);
    };
    listen();
    try {
      await lines((line) => {
        listen();
        if (line.error !== undefined) {
          throw new Error(line.error);
        }
        if (line.first) {
          this.pause = firstPause;
          this.live();
        }
        this.take(line);
      }, abort.signal);
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  }
}
