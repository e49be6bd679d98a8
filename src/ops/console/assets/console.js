// Comfort only: every page works without it.
"use strict";

// Times are shown in the zone of this browser; the server learns it by a cookie.
(function zone() {
  const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (!here || document.body.dataset.zone === here) return;
  document.cookie = "tz=" + encodeURIComponent(here) + "; path=/; max-age=31536000; samesite=strict";
  if (document.body.dataset.zone === "UTC" && !sessionStorage.getItem("zone-told")) {
    sessionStorage.setItem("zone-told", "yes");
    if (!document.querySelector("form[method=post] input:not([type=hidden])")) location.reload();
  }
})();

// Live progress: the server sends the same piece of page again whenever it changed.
(function progress() {
  const place = document.querySelector("[data-events]");
  if (!place || !window.EventSource) return;
  const source = new EventSource(place.dataset.events);
  source.addEventListener("piece", (event) => { place.innerHTML = event.data; });
  source.addEventListener("over", () => { source.close(); location.reload(); });
  window.addEventListener("pagehide", () => source.close());
})();

// How many are chosen, and choosing all of them.
document.querySelectorAll("form[data-count]").forEach((form) => {
  const all = form.querySelector("[data-all]");
  const shown = form.querySelector("[data-chosen]");
  if (!all || !shown) return;
  const boxes = Array.from(form.querySelectorAll('input[type=checkbox][name="' + all.dataset.all + '"]'));
  const count = () => { shown.textContent = "(" + boxes.filter((box) => box.checked).length + ")"; };
  all.addEventListener("change", () => { boxes.forEach((box) => { box.checked = all.checked; }); count(); });
  boxes.forEach((box) => box.addEventListener("change", count));
  count();
});

// Time travel: an order at the version under the slider, which keeps its place and the keyboard.
(function travel() {
  const slider = document.querySelector("input[data-travel]");
  if (!slider) return;
  let turn = 0;
  const show = () => {
    const mine = ++turn;
    const url = new URL(location.href);
    url.searchParams.set("version", slider.value);
    fetch(url).then((answer) => (answer.ok ? answer.text() : Promise.reject(answer.status))).then((text) => {
      if (mine !== turn) return;
      const then = new DOMParser().parseFromString(text, "text/html");
      for (const id of ["moment", "history"]) {
        document.getElementById(id).replaceChildren(...then.getElementById(id).childNodes);
      }
      history.replaceState(null, "", url);
    }).catch(() => location.assign(url));
  };
  // Where it is drawn past many versions, only those where it rests are asked for.
  let rest;
  slider.addEventListener("input", () => { clearTimeout(rest); rest = setTimeout(show, 60); });
})();
