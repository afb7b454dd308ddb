// Reloads the main part of the page of a submission that is queued or running, as its events arrive.
const main = document.querySelector("main[data-events]");
if (main) {
  const source = new EventSource(main.dataset.events);
  const refresh = async () => {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("main");
    main.replaceChildren(...fresh.childNodes);
    if (!fresh.dataset.events) source.close();
  };
  source.addEventListener("state", refresh);
  source.addEventListener("progress", refresh);
  source.addEventListener("error", refresh);
}
