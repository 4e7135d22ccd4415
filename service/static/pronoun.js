export function mount(panel) {
  panel.textContent = "…";
}
