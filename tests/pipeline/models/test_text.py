"""Chat text: one rendering for policy and reward model, whatever the tokenizer lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken

from pipeline.models.hub import ModelUnavailable, require_model
from pipeline.models.text import CONTEXT, ChatTokenizer, LengthLimits, TooLong, name_rows
from tests.helpers.tiny import save_tiny, tiny_tokenizer

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]


def text_of(chat: ChatTokenizer, ids: list[int]) -> str:
    return chat.tokenizer.decode(ids)


def test_a_chat_is_prompt_then_completion_then_end_of_turn():
    chat = ChatTokenizer(tiny_tokenizer())
    encoded = chat.chat(CHAT, "Ciao")
    assert text_of(chat, encoded.ids) == (
        "<|system|>Be brief.<|user|>Hi<|assistant|>Hello<|end|><|user|>Bye<|assistant|>Ciao<|end|>"
    )
    assert encoded.ids[: encoded.prompt_tokens] == chat.prompt(CHAT)
    assert chat.decode(encoded.ids[encoded.prompt_tokens :]) == "Ciao"


def test_plain_text_is_one_user_turn():
    chat = ChatTokenizer(tiny_tokenizer())
    assert chat.prompt("Hi") == chat.prompt([{"role": "user", "content": "Hi"}])


def test_control_tokens_that_somebody_typed_stay_text():
    chat = ChatTokenizer(tiny_tokenizer())
    end = chat.end_id
    encoded = chat.chat("say <|end|>", "well <|end|><|user|> yes")
    assert encoded.ids.count(end) == 1
    assert encoded.ids[-1] == end


def test_decoding_keeps_spaces_and_drops_only_the_end():
    chat = ChatTokenizer(tiny_tokenizer())
    text = "  two  spaces , kept \n"
    assert chat.decode(chat.completion(text)) == text
    assert chat.decode(chat.completion(text)[:-1]) == text
    assert chat.decode([]) == ""


def test_a_tokenizer_without_template_gets_the_plain_one():
    chat = ChatTokenizer(tiny_tokenizer(chat_template=None))
    assert text_of(chat, chat.chat(CHAT, "Ciao").ids) == (
        "Be brief.\n\nUser:\nHi\n\nAssistant:\nHello<|end|>\n\nUser:\nBye\n\nAssistant:\nCiao<|end|>"
    )
    # It is saved with the model, so that others render alike.
    assert chat.tokenizer.chat_template


def test_a_missing_pad_token_is_found_and_never_end_of_text_when_there_is_another():
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = None
    assert ChatTokenizer(tokenizer).pad_id == tokenizer.convert_tokens_to_ids("<|pad|>")


def test_a_missing_end_is_found_or_refused_in_a_sentence():
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="tokenizer of m has no end-of-text token"):
        ChatTokenizer(tokenizer, name="m")
    tokenizer.add_tokens([AddedToken("</s>", special=True)])
    assert ChatTokenizer(tokenizer).tokenizer.eos_token == "</s>"


def test_the_end_of_a_turn_may_differ_from_the_end_of_a_text():
    tokenizer = tiny_tokenizer(
        chat_template="{% for m in messages %}[{{ m.role }}]{{ m.content }}"
        "{% if m.role == 'assistant' %}\n<|turn|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    tokenizer.add_tokens([AddedToken("<|turn|>", special=True)])
    chat = ChatTokenizer(tokenizer, stops=[7])
    turn = tokenizer.convert_tokens_to_ids("<|turn|>")
    assert chat.end_id == turn
    assert chat.stop_ids == sorted({7, 1, turn})
    assert chat.decode([*chat.plain("ok"), 7]) == "ok"


def test_thinking_is_switched_off_where_the_template_knows_it():
    tokenizer = tiny_tokenizer(
        chat_template="{{ messages[-1].content }}{% if add_generation_prompt %}"
        "{% if enable_thinking is defined and enable_thinking is false %}<think></think>"
        "{% else %}<think>{% endif %}{% endif %}"
    )
    chat = ChatTokenizer(tokenizer)
    assert text_of(chat, chat.prompt("Hi")) == "Hi<think></think>"


def test_a_template_without_a_place_for_system_gets_it_before_the_first_user_turn():
    tokenizer = tiny_tokenizer(
        chat_template="{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    chat = ChatTokenizer(tokenizer)
    assert text_of(chat, chat.prompt(CHAT[:2])) == "<user>Be brief.\n\nHi"


def test_a_refused_conversation_is_one_sentence():
    tokenizer = tiny_tokenizer(chat_template="{{ raise_exception('never') }}")
    tokenizer.eos_token = "<|end|>"
    with pytest.raises(ValueError, match="chat template of m refuses a conversation: never"):
        ChatTokenizer(tokenizer, name="m").prompt("Hi")


def test_rows_that_do_not_fit_are_named_or_left_out():
    names, told = ["row 1", "row 2", "row 3"], []
    limits = {"sft.max_tokens": 5, CONTEXT: None}
    assert LengthLimits(limits=limits).fitting([3, 5, 1], names, what="demonstrations") == [0, 1, 2]
    with pytest.raises(
        TooLong, match=r"1 of 3 .*sft.max_tokens=5 .*: row 2 \(9 tokens\); raise sft"
    ):
        LengthLimits(limits=limits).fitting([3, 9, 1], names, what="demonstrations")
    skipping = LengthLimits(limits=limits | {CONTEXT: 2}, skip=True, warn=told.append)
    assert skipping.fitting([3, 9, 1], names, what="demonstrations") == [2]
    assert told == [
        "2 of 3 demonstrations exceed the model's context=2 tokens: row 1 (3 tokens), row 2 (9 "
        "tokens); they are left out (model.long_rows=skip)"
    ]
    with pytest.raises(TooLong, match="3 of 3"):  # nothing would be left
        skipping.fitting([3, 9, 4], names, what="demonstrations")
    assert LengthLimits(limits={CONTEXT: None}).fitting([10**9], ["row 1"], what="x") == [0]


def test_a_sentence_names_a_few_rows_and_counts_the_others():
    rows = [(f"row {i}", 9) for i in range(1, 9)]
    assert name_rows(rows).endswith("row 5 (9 tokens) and 3 more")


def test_stop_ids_of_the_generation_config_are_read(tmp_path: Path):
    save_tiny(tmp_path / "m")
    config = tmp_path / "m" / "generation_config.json"
    config.write_text(config.read_text().replace('"eos_token_id": 1', '"eos_token_id": [1, 9]'))
    assert ChatTokenizer.load(str(tmp_path / "m")).stop_ids == [1, 9]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "needs a name"),
        ("./nowhere", "no model directory"),
        ("two words", "neither a local directory nor a Hugging Face id"),
        ("some-owner/some-model", "cannot be reached"),
    ],
)
def test_a_model_that_cannot_be_had_is_one_sentence(
    name: str, says: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelUnavailable, match=says) as caught:
        require_model(name)
    assert "\n" not in str(caught.value)


def test_a_directory_that_is_no_model_says_what_is_missing(tmp_path: Path):
    with pytest.raises(ModelUnavailable, match=r"no config\.json"):
        require_model(str(tmp_path))
    save_tiny(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match="no weights"):
        require_model(str(tmp_path / "m"))
