"""Each lesson as a learner meets it: open, Run All, move the widget, see its effect."""

import nbformat
import pytest

from tests.browser.conftest import ROOT, SCREENSHOTS
from tools.course import course

LESSONS = course().lessons


def open_lesson(page, lab, lesson):
    """Open a lesson, run all its cells and wait for the last one. Returns the notebook's panel."""
    page.goto(lab.format(lesson.notebook.name), wait_until="domcontentloaded")
    panel = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
    panel.wait_for(timeout=120_000)
    # Run All while the status bar still says "Connecting" opens a "Select Kernel" dialog.
    page.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for(timeout=120_000)
    panel.screenshot(path=SCREENSHOTS / f"{lesson.number}_opened.png")
    page.get_by_role("menuitem", name="Edit", exact=True).click()
    page.locator('.lm-Menu-item[data-command="editmenu:clear-all"]').click()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator('.lm-Menu-item[data-command="runmenu:run-all"]').click()
    # Every code cell has its number again, and a number comes when the cell is done.
    page.wait_for_function(
        r"""() => [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell .jp-InputPrompt')]
                 .every(prompt => !prompt.textContent.trim() || /^\[\d+\]:?$/.test(prompt.textContent.trim()))""",
        timeout=90_000)
    return panel


def alt(panel) -> str:
    return panel.locator(".widget-html-content img").last.get_attribute("alt")


def move_next_token(panel):
    before = alt(panel)
    box = panel.locator(".widget-text input").first
    box.fill("Twinkle, twinkle, little")
    panel.locator(".widget-html-content img[alt*='star']").wait_for(timeout=30_000)
    return before, alt(panel), box


def move_stages(panel):
    screen = panel.locator(".widget-html-content table").first
    before = screen.inner_text()
    box = panel.locator(".widget-text input").first
    box.fill("A wonderful, warm and funny film.")
    panel.locator(".widget-html-content table", has_text="wonderful").wait_for(timeout=30_000)
    after = panel.locator(".widget-html-content table").first.inner_text()
    assert "wonderful" in after and "NEGATIVE 0.997" in before and "POSITIVE 0.99" in after
    return before, after, box


def move_playground(panel):
    screen = panel.locator(".widget-html-content", has_text="tokens for").first
    before = screen.inner_text()
    assert "smollm2: 9 tokens for 25 characters, 29 bytes" in before and "lost: 🌙" in before
    box = panel.locator(".widget-text input").first
    box.fill("Grüße 🌙")
    panel.locator(".widget-html-content", has_text="for 7 characters, 12 bytes").first.wait_for(timeout=30_000)
    panel.locator(".widget-dropdown select").nth(1).select_option("sp-bpe")
    panel.locator(".widget-html-content", has_text="🌙 4/4").first.wait_for(timeout=30_000)
    return before, screen.inner_text(), box


def move_attention(panel):
    before = alt(panel)
    assert before.endswith("falls on padding: 0.00")
    box = panel.locator(".widget-checkbox input").first
    box.uncheck()
    panel.locator(".widget-html-content img[alt*='without a mask']").wait_for(timeout=30_000)
    after = alt(panel)
    assert float(after.rsplit(" ", 1)[1]) > 0.1
    return before, after, box


def move_parameter_map(panel):
    screen = panel.locator(".widget-html-content table").first
    before = screen.inner_text()
    assert before.startswith("134,515,008 parameters") and "lm_head" not in before
    box = panel.locator(".widget-checkbox input").first
    box.uncheck()       # the head is no longer tied to the embedding
    panel.locator(".widget-html-content table", has_text="lm_head.weight").wait_for(timeout=30_000)
    after = panel.locator(".widget-html-content table").first.inner_text()
    assert after.startswith("162,826,560 parameters")
    return before, after, box


def move_chat_template(panel):
    screen = panel.locator(".widget-html-content table").first
    before = screen.inner_text()
    assert "⟦<|im_start|>⟧" in before and "helpful AI assistant" in before
    box = panel.locator(".widget-checkbox input").first     # send the system message
    box.check()
    panel.locator(".widget-html-content table", has_text="Answer in one word.").wait_for(timeout=30_000)
    after = panel.locator(".widget-html-content table").first.inner_text()
    assert "helpful AI assistant" not in after
    panel.locator(".widget-checkbox input").nth(2).check()  # continue_final_message beside the generation prompt
    panel.locator(".widget-html-content pre", has_text="not compatible").wait_for(timeout=30_000)
    return before, after, box


def move_logit_lens(panel):
    screen = panel.locator(".widget-html-content table").first
    before = screen.inner_text()
    assert "·Paris" in before
    box = panel.locator(".widget-text input").first
    box.fill("Twinkle, twinkle, little")
    panel.locator(".widget-html-content table", has_text="·star").wait_for(timeout=30_000)
    return before, panel.locator(".widget-html-content table").first.inner_text(), box
def move_sampling(panel):
    before = alt(panel)
    assert "of 49,152 tokens can be drawn" in before and "(cut)" in before
    box = panel.locator(".widget-text input").first
    box.fill("The capital of France is")
    panel.locator(".widget-html-content img[alt*='·Paris 1.000']").wait_for(timeout=30_000)    # one token reaches top_p
    after = alt(panel)
    assert after.startswith("1 of 49,152 tokens can be drawn") and "(cut)" in after
    return before, after, box


def move_cache_timeline(panel):
    before = alt(panel)
    assert before.startswith("batch 16, 8 KV heads, bfloat16: 10.0 GiB at the peak")
    box = panel.locator(".widget-dropdown select").first
    box.select_option("1")
    panel.locator(".widget-html-content img[alt*='batch 16, 1 KV heads']").wait_for(timeout=30_000)
    after = alt(panel)
    assert "1.2 GiB at the peak" in after
    return before, after, box


def move_fit_planner(panel):
    before = alt(panel)
    assert "as stored: weights 16.06" in before and "does not fit" not in before
    box = panel.locator(".widget-dropdown select").nth(1)
    box.select_option("8 GB")
    panel.locator(".widget-html-content img[alt*='on a card of 8 GB']").wait_for(timeout=30_000)
    after = alt(panel)
    assert "16.06 + cache 1.07 + logits 0.00 = 17.14, does not fit" in after and "NF4: weights 6.03 + cache 1.07" in after
    return before, after, box


def move_quantization(panel):
    before = alt(panel)
    assert before.startswith("4 bits, one scale per 64: 4.25 bits per weight")
    box = panel.locator(".widget-dropdown select").last
    box.select_option("tensor")
    panel.locator(".widget-html-content img[alt*='one scale per tensor']").wait_for(timeout=60_000)
    return before, alt(panel), box


def move_throughput(panel):
    before = alt(panel)
    assert "Batch 8:" in before and "Best within 8 s" in before
    box = panel.locator(".widget-dropdown select").first
    box.select_option("this machine, just now")
    panel.locator(".widget-html-content img[alt*='this machine. Batch 8:']").wait_for(timeout=30_000)
    return before, alt(panel), box


WIDGETS = {
    "00": move_next_token,
    "01": move_stages,
    "02": move_parameter_map,
    "03": move_playground,
    "04": move_chat_template,
    "05": move_attention,
    "06": move_logit_lens,
    "07": move_sampling,
    "08": move_cache_timeline,
    "09": move_fit_planner,
    "10": move_quantization,
    "11": move_throughput,
}


@pytest.mark.parametrize("lesson", LESSONS, ids=[lesson.number for lesson in LESSONS])
def test_a_learner_runs_all_and_moves_the_widget(lesson, lab, page):
    faults = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    panel = open_lesson(page, lab, lesson)

    expected = [cell for cell in nbformat.read(ROOT / "notebooks" / lesson.notebook.name, as_version=4).cells
                if any(output.output_type == "error" for output in cell.get("outputs", ()))]
    errors = panel.locator('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]', has_text="Traceback")
    assert errors.count() == len(expected)
    verdicts = panel.get_by_text("not attempted. Replace the ...")
    assert verdicts.count() >= 2, "an untouched exercise says that it was not attempted"

    before, after, control = WIDGETS[lesson.number](panel)
    assert before != after
    control.scroll_into_view_if_needed()
    page.screenshot(path=SCREENSHOTS / f"{lesson.number}_widget.png")
    assert faults == []


def test_details_open_and_show_the_solution(lab, page):
    page.goto(lab.format("05_padding_and_masks.ipynb"), wait_until="domcontentloaded")
    fold = page.locator("details", has_text="Solution").first
    fold.wait_for(timeout=120_000)
    solution = fold.locator("pre").first
    assert "weights.masked_fill(mask == 0, 0.0)" in solution.text_content()
    assert not solution.is_visible()
    fold.locator("summary").click()
    solution.wait_for(state="visible", timeout=10_000)
