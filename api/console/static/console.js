// The live parts of the console, and the message about a failed request. The server renders everything else.
"use strict";

const POINTS = 300; // A status comes every two seconds, so a chart shows ten minutes.
const COLOURS = ["--first", "--second", "--third", "--fourth", "--fifth", "--sixth"];
const DASHES = [[], [10, 5], [3, 3]]; // Each colour is used for three lines.
// A name has the same line in all charts. `number` adds other names, such as the endpoints of webhooks.
const NUMBER_OF = { p50: 0, p99: 1, "fan-out": 0, loyalty: 1, sales: 2, export: 3, ledger: 4 };

/** Follow a stream of events for as long as the element is on the page.
 *
 * EventSource gives up after a response that is not 200, for example while a partition moves. Then this function makes
 * a new EventSource. It makes none after the event "ended", because no attempt can succeed: for example, the token of
 * the user has expired.
 *
 * A hidden page follows no stream. Each stream needs a connection, and a browser opens only six to an instance. */
function follow(element, onEvent) {
  if (!element.isConnected) return;
  const source = document.hidden ? null : new EventSource(element.dataset.events);
  const stop = () => {
    source?.close();
    document.removeEventListener("visibilitychange", again);
  };
  const again = () => {
    stop();
    say("connection", "Connecting …");
    follow(element, onEvent);
  };
  document.addEventListener("visibilitychange", again);
  if (!source) return;
  const handle = (event) => {
    if (element.isConnected) onEvent(event);
    else stop();
  };
  for (const name of ["balance", "card-replaced", "erased", "gap", "status"]) source.addEventListener(name, handle);
  source.addEventListener("ended", () => {
    stop();
    say("connection", "The live connection has ended. The page can be out of date.");
  });
  source.addEventListener("live", () => say("connection", "Live."));
  source.addEventListener("error", () => {
    say("connection", "No connection. Trying again …");
    if (source.readyState !== EventSource.CLOSED) return;
    stop();
    setTimeout(() => follow(element, onEvent), 1000);
  });
}

/** Show a text. A screen reader reads it aloud if it has changed. */
function say(id, text) {
  const place = document.getElementById(id);
  if (place && place.textContent !== text) place.textContent = text;
}

// One press is one step. A held Enter and a double click would also press the button that has just appeared.
document.addEventListener("keydown", (event) => {
  if (event.repeat && event.key === "Enter" && event.target.tagName !== "TEXTAREA") event.preventDefault();
});
document.addEventListener(
  "click",
  (event) => {
    if (event.detail < 2 || !event.target.closest("button")) return;
    event.preventDefault();
    event.stopPropagation();
  },
  true,
);

document.addEventListener("change", ({ target }) => {
  if (!target.matches("[data-all]")) return;
  for (const each of target.form.querySelectorAll("input[name=position]")) each.checked = target.checked;
});

const charts = new Map();

/** Add the values of one moment to a chart. For a new name, make a new chart with the earlier moments. */
function draw(kind, time, values) {
  const place = document.querySelector(`[data-chart="${kind}"]`);
  const names = Object.keys(values);
  if (!place || !names.length) return;
  let chart = charts.get(kind);
  if (!chart || names.some((name) => !chart.names.includes(name))) {
    const before = chart ? chart.names : [];
    const all = [...new Set([...before, ...names])].sort((one, other) => number(one) - number(other));
    const times = chart ? chart.data[0] : [];
    const earlier = (name) => (before.includes(name) ? chart.data[before.indexOf(name) + 1] : times.map(() => null));
    const data = [times, ...all.map(earlier)];
    if (chart) chart.plot.destroy();
    chart = { names: all, data, plot: plot(place, all, data) };
    charts.set(kind, chart);
  }
  chart.data[0].push(time);
  chart.names.forEach((name, at) => chart.data[at + 1].push(values[name] ?? null));
  if (chart.data[0].length > POINTS) chart.data.forEach((each) => each.shift());
  chart.plot.setData(chart.data);
  if (chart.plot.cursor.idx == null) chart.plot.setLegend({ idx: chart.data[0].length - 1 }); // the newest values
}

/** The number of the line of a name. A new name gets the next number. */
function number(name) {
  return (NUMBER_OF[name.replace("query ", "")] ??= Math.max(...Object.values(NUMBER_OF)) + 1);
}

function clock(time) {
  return time === null ? "" : new Date(time * 1000).toISOString().slice(11, 19);
}

function plot(place, names, data) {
  const style = getComputedStyle(document.documentElement);
  const ink = (name) => () => style.getPropertyValue(name); // The colours change with the scheme of the browser.
  const line = { stroke: ink("--line"), width: 1 };
  const axis = { stroke: ink("--text"), grid: line, ticks: line };
  const series = names.map((name) => ({
    label: name,
    width: 2,
    stroke: ink(COLOURS[number(name) % COLOURS.length]),
    dash: DASHES[Math.floor(number(name) / COLOURS.length) % DASHES.length],
  }));
  const options = {
    width: place.clientWidth,
    height: 200,
    series: [{ label: "UTC", value: (_, time) => clock(time) }, ...series],
    axes: [{ ...axis, space: 80, values: (_, times) => times.map(clock) }, { ...axis, size: 60 }],
    scales: {
      x: { range: (_, low, high) => [Math.min(low, high - 60), high] },
      y: { range: (_, low, high) => [0, Math.max(high || 0, 1)] },
    },
  };
  return new uPlot(options, data, place);
}

function showStatus(status) {
  const time = Date.parse(status.time) / 1000;
  // The archive reads once an hour. In a chart, its values would hide those of the other queries.
  const ofQueries = (member) => {
    const known = status.queries.filter((query) => query[member] !== null && query.name !== "archive");
    return Object.fromEntries(known.map((query) => [query.name, query[member]]));
  };
  const lag = {};
  for (const topic of status.topics) {
    for (const [reader, records] of Object.entries(topic.lag)) {
      if (reader !== "query archive") lag[reader] = (lag[reader] || 0) + records;
    }
  }
  const percentile = (share) => (share === "0.5" ? "p50" : "p99");
  const freshness = Object.entries(status.freshnessSeconds).map(([share, seconds]) => [percentile(share), seconds]);
  draw("freshness", time, Object.fromEntries(freshness));
  draw("rate", time, ofQueries("rate"));
  draw("batchSeconds", time, ofQueries("batchSeconds"));
  draw("lag", time, lag);
  htmx.trigger("#state", "refresh");
}

htmx.onLoad((content) => {
  const found = content.matches?.("[data-events]") ? content : content.querySelector?.("[data-events]");
  if (found && !found.dataset.followed) {
    found.dataset.followed = "yes";
    follow(found, (event) => {
      if (event.type === "status") showStatus(JSON.parse(event.data));
      else for (const place of document.querySelectorAll("[data-live]")) htmx.trigger(place, "refresh");
    });
  }
  if (content.closest?.("#balance")) say("total", content.querySelector(".total")?.textContent ?? "");
  const next = content.matches?.("[data-focus]") ? content : content.querySelector?.("[data-focus]");
  if (next && !document.activeElement.matches("input, select, textarea")) next.focus(); // The user may type elsewhere.
});

const newest = new WeakMap(); // the newest request for each part of the page

document.addEventListener("htmx:confirm", (event) => {
  const { elt, target } = event.detail;
  const before = newest.get(target)?.requestConfig.elt;
  const isUnderWay = before?.classList.contains("htmx-request");
  // A command under way keeps its form. In every other case, a later choice replaces an earlier one.
  if (isUnderWay && before.matches("[data-command]")) event.preventDefault();
  if (!elt.matches("[data-live]")) return;
  // A refresh replaces neither the older entries nor a problem that loads again by itself.
  if (target.querySelector("[data-older], .problem[hx-get]")) event.preventDefault();
  // It waits for a request of the user. After an earlier refresh, htmx sends one more.
  if (!isUnderWay || before === elt) return;
  event.preventDefault();
  htmx.trigger(elt, "again");
});
document.addEventListener("htmx:beforeSend", ({ detail }) => {
  newest.set(detail.target, detail);
  if (detail.elt.matches("[data-command]")) detail.elt.dataset.sent = "yes";
});
document.addEventListener("htmx:beforeSwap", (event) => {
  const { target, xhr } = event.detail;
  if (newest.get(target)?.xhr !== xhr) event.preventDefault(); // A slow refresh does not undo what the user chose.
});

function isOfUser(event) {
  return ["click", "submit"].includes(event.detail.requestConfig.triggeringEvent?.type);
}

/** Say that a request of htmx has failed. A form stays on the page with its Idempotency-Key.
 *
 * A part that loads once by itself shows the message in its place. A part that loads again, every few seconds or after
 * an event of the stream, keeps its content. */
function showFailure(event, reason) {
  const loadsAgain = event.detail.elt.matches('[hx-trigger*="every"], [hx-trigger*="again"]');
  const loadsOnce = !event.detail.requestConfig.triggeringEvent && !loadsAgain;
  htmx.trigger(event.detail.target, "again"); // A live part may have missed a refresh, too.
  if (loadsOnce) event.detail.elt.textContent = `${reason} Load the page again.`;
  if (!isOfUser(event) || document.getElementById("beside-form")) return;
  const alert = document.createElement("p");
  Object.assign(alert, { id: "beside-form", className: "problem", role: "alert" });
  const advice =
    event.detail.requestConfig.verb === "get"
      ? "Choose the button again."
      : event.detail.elt.querySelector("input[name=key]")
        ? "Choose Confirm again: a repetition takes effect once. Every other button starts a new command."
        : "Load the page again before you repeat it.";
  alert.textContent = `${reason} ${advice}`;
  event.detail.elt.after(alert);
}
for (const name of ["htmx:sendError", "htmx:timeout"]) {
  document.addEventListener(name, (event) => showFailure(event, "No response came."));
}
document.addEventListener("htmx:responseError", (event) => {
  showFailure(event, `The server answered with an error (status ${event.detail.xhr.status}).`);
});
document.addEventListener("htmx:beforeRequest", (event) => {
  // The message about a command without a response stays for as long as its form.
  const isAside = event.detail.requestConfig.verb === "get" && document.querySelector("#action [data-sent]");
  if (isOfUser(event) && !isAside) document.getElementById("beside-form")?.remove();
});

window.addEventListener("beforeunload", (event) => {
  if (document.querySelector("#action [data-sent]")) event.preventDefault(); // The browser asks the user.
});

window.addEventListener("resize", () => {
  for (const [kind, chart] of charts) {
    chart.plot.setSize({ width: document.querySelector(`[data-chart="${kind}"]`).clientWidth, height: 200 });
  }
});
