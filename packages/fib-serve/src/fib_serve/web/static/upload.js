// Fills the form for a kernel from the file that its author chooses.
const LANGUAGES = { cu: "cuda", cpp: "cpp", py: "python" };
document.querySelector("#file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (!file) return;
  document.querySelector("#source").value = await file.text();
  document.querySelector("#path").value = file.name;
  const language = LANGUAGES[file.name.split(".").pop()];
  if (language) document.querySelector("#language").value = language;
});
