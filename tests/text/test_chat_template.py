import json
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path

import pytest

from edge_runtime.errors import ChatTemplateError, InvalidParameterError
from edge_runtime.text import chat_template
from edge_runtime.text.chat_template import ChatTemplate, no_chat_template

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = [{"role": "user", "content": "Hi"}]
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Grüße, 世界?"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather <now> & here",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "größte Stadt"}},
                "required": ["city"],
            },
        },
    }
]


def text_parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


def template(source, **tokens):
    return ChatTemplate(source, special_tokens={**TOKENS, **tokens})


def rendered(source, messages=USER, **arguments):
    return template(source).render(messages, **arguments)


# ---- simple conversations, exactly


def test_chatml_is_exact():
    assert rendered(CHATML, CONVERSATION) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nGrüße, 世界?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_without_a_generation_prompt_it_ends_with_the_last_message():
    assert rendered(CHATML, add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"


def test_blocks_take_their_line_with_them_as_in_transformers():
    source = "{% for m in messages %}\n  {% if true %}\nx\n  {% endif %}\n{% endfor %}\n"
    assert rendered(source) == "x\n"


def test_markup_in_messages_is_not_escaped_nor_run():
    message = [{"role": "user", "content": "<b>{{ 1 + 1 }} & 'x'"}]
    assert "<b>{{ 1 + 1 }} & 'x'" in rendered(CHATML, message)


def test_special_tokens_are_visible_and_absent_ones_undefined():
    source = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token is defined }}"
    assert rendered(source) == "<s>|</s>||False"


# ---- helpers


def test_raise_exception_is_an_error_with_the_templates_words():
    with pytest.raises(ChatTemplateError, match="Only one turn, please") as caught:
        rendered("{{ raise_exception('Only one turn, please') }}")
    assert caught.value.hint


def test_strftime_now_gives_the_local_time():
    year = rendered("{{ strftime_now('%Y') }}")
    assert abs(int(year) - datetime.now().year) <= 1


def test_tojson_keeps_html_and_other_scripts():
    source = "{{ messages[0]['content'] | tojson }}"
    message = [{"role": "user", "content": "<é>&'\""}]
    assert rendered(source, message) == '"<é>&\'\\""'


def test_tojson_takes_the_arguments_that_transformers_gives_it():
    source = (
        "{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=true, separators=(',', ':'),"
        " sort_keys=true) }}\n{{ {'b': [1]} | tojson(indent=2) }}"
    )
    assert rendered(source) == '{"a":"\\u00e9","b":1}\n{\n  "b": [\n    1\n  ]\n}'


def test_loop_controls_break_and_continue():
    source = (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
        "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    )
    assert rendered(source) == "023"


def test_loop_variables_still_know_where_they_are():
    source = (
        "{% for m in 'abc' %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}"
        "{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}"
        "{% for k, v in {'x': 1}|items %}{{ k }}{{ v }}{% else %}none{% endfor %}"
        "{% for m in [] %}{% else %}empty{% endfor %}"
    )
    assert rendered(source) == "1/3Falseb 2/3Falseac 3/3Trueb x1empty"


def test_tilde_joins_anything_as_text():
    assert rendered("{{ 'a' ~ 1 ~ none ~ missing ~ [2] }}") == "a1None[2]"


def test_the_generation_tag_prints_its_body():
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert rendered(source) == "Hi"


def test_tools_and_documents_reach_the_template():
    source = "{{ tools[0].function.name }} {{ documents[0].title }}{{ messages|length }}"
    assert rendered(source, tools=TOOLS, documents=[{"title": "T"}]) == "get_weather T1"


def test_absent_tools_are_none_and_looping_over_them_prints_nothing():
    assert rendered("{{ tools is none }}{% for t in tools %}x{% endfor %}") == "True"


def test_extra_variables_reach_the_template():
    source = "{{ enable_thinking is defined and enable_thinking is false }} {{ date_string }}"
    extra = {"enable_thinking": False, "date_string": "26 Jul 2024"}
    assert rendered(source, extra=extra) == "True 26 Jul 2024"


@pytest.mark.parametrize("name", ["messages", "tools", "documents", "add_generation_prompt"])
def test_extra_variables_cannot_redefine_an_argument(name):
    with pytest.raises(InvalidParameterError, match=name):
        rendered(CHATML, extra={name: 1})


# ---- broken and hostile templates


def test_a_syntax_error_is_named_with_its_line():
    with pytest.raises(ChatTemplateError, match=r"line 2: .*endfor"):
        rendered("x\n{% endfor %}")


def test_an_attribute_of_something_undefined_is_named_with_its_line():
    with pytest.raises(ChatTemplateError, match=r"line 3: 'nobody' is undefined"):
        rendered("a\nb\n{{ nobody.name }}")


def test_python_errors_inside_a_template_are_its_error():
    with pytest.raises(ChatTemplateError, match="line 1"):
        rendered("{{ 'a' + 1 }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{% for m in messages %}{{ loop.__init__.__globals__ }}{% endfor %}",
        "{% include 'x' %}",
        "{{ 'a'.translate({97: 'x'}) }}",
        "{{ lipsum() }}",
    ],
)
def test_a_template_stays_inside_the_sandbox(source):
    with pytest.raises(ChatTemplateError):
        rendered(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ range(10**9) | list }}",
        "{{ 'a' * 10**10 }}",
        "{{ [0] * 10**10 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{{ 'a' | center(10**10) }}",
        "{{ 'a\nb' | indent(10**10) }}",
        "{{ 'a'.ljust(10**10) }}",
        "{{ '%99999999999d' % 1 }}",
        "{{ '%*d' % (10**10, 1) }}",
        "{{ '%99999999999d' | format(1) }}",
        "{{ '{:99999999999}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w=10**10) }}",
        "{{ [1] | tojson(indent=10**10) }}",
        "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
        "{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}",
        "{{ ('a' * 10**6).join(['x'] * 10**6) }}",
        "{{ (['x'] * 10**6) | join('a' * 10**6) }}",
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}"
        "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
        "{% set x = 'a' * 10**6 %}{% for i in range(10**4) %}{{ x }}{% endfor %}",
        "{% set n = namespace(x=[]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
        "{{ n.x | tojson }}",
        "{% set n = namespace(x=[]) %}"
        "{% for i in range(99) %}{% set n.x = {'a': n.x, 'b': n.x} %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=()) %}{% for i in range(99) %}{% set n.x = n.x, n.x %}{% endfor %}"
        "{{ n.x | string }}",
        "{% set n = namespace(x=[]) %}"
        "{% for i in range(10**4) %}{% set n.x = n.x + ['a' * 10**6] %}{% endfor %}",
    ],
)
def test_a_template_that_makes_too_much_is_stopped_at_once(source):
    with pytest.raises(ChatTemplateError):
        rendered(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    ],
)
def test_a_template_that_runs_too_long_is_stopped(source, monkeypatch):
    monkeypatch.setattr(chat_template, "TIME_LIMIT_S", 0.05)
    with pytest.raises(ChatTemplateError, match=r"stopped: it ran for more than 0\.05 s"):
        rendered(source)


def test_endless_recursion_is_the_templates_error():
    with pytest.raises(ChatTemplateError):
        rendered("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}")


def test_a_stopped_template_renders_again():
    one = template("{% if boom %}{{ 'a' * 10**10 }}{% endif %}fine")
    with pytest.raises(ChatTemplateError):
        one.render(USER, extra={"boom": True})
    assert one.render(USER) == "fine"


def test_an_empty_template_is_none_at_all_and_no_other_is_guessed():
    with pytest.raises(ChatTemplateError, match="no chat template") as caught:
        template(" \n")
    assert "--raw" in (caught.value.hint or "")
    assert "m.gguf" in no_chat_template("m.gguf").message


def test_a_broken_template_is_found_when_compiled():
    broken = template("{% if %}")
    with pytest.raises(ChatTemplateError, match="line 1"):
        broken.compile()


# ---- messages as clients send them


def test_text_parts_become_lines_where_the_template_reads_strings():
    messages = [{"role": "user", "content": text_parts("one", "two")}]
    assert rendered("{% for m in messages %}{{ m.content + '!' }}{% endfor %}", messages) == (
        "one\ntwo!"
    )


def test_text_parts_stay_parts_where_the_template_prints_either():
    source = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
    )
    assert rendered(source, [{"role": "user", "content": text_parts("one", "two")}]) == "onetwo"
    assert rendered(source) == "Hi"


def test_a_string_becomes_a_part_where_the_template_reads_only_parts():
    source = (
        "{% for m in messages %}{% for p in m.content %}{{ p['text'] }}{% endfor %}{% endfor %}"
    )
    assert rendered(source) == "Hi"
    assert rendered(source, [{"role": "user", "content": text_parts("a", "b")}]) == "ab"


def test_parts_are_joined_where_the_template_would_print_the_list_itself():
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert rendered(source, [{"role": "user", "content": text_parts("a", "b")}]) == "a\nb"


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "image_url"),
        ({"type": "input_audio"}, "input_audio"),
        ({"text": "x"}, "None"),
        ({"type": "text", "text": 1}, "text"),
        ("text", "str"),
    ],
)
def test_a_part_that_is_not_text_is_refused_by_place_and_kind(part, kind):
    messages = [*USER, {"role": "user", "content": [*text_parts("a"), part]}]
    with pytest.raises(InvalidParameterError, match=rf"messages\[1\]\.content\[1\].*{kind}"):
        rendered(CHATML, messages)


@pytest.mark.parametrize(
    "message", ["Hi", {"content": "Hi"}, {"role": 1, "content": ""}, {"role": "user", "content": 5}]
)
def test_what_is_no_message_is_refused_by_place(message):
    with pytest.raises(InvalidParameterError, match=r"messages\[0\]"):
        rendered(CHATML, [message])


NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
IGNORES_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endif %}"
    "{% endfor %}"
)


@pytest.mark.parametrize("source", [NO_SYSTEM, IGNORES_SYSTEM])
def test_a_system_message_goes_before_the_first_user_message_where_there_is_no_such_role(source):
    assert rendered(source, CONVERSATION) == (
        "[user]Be brief.\n\nHi[assistant]Hello![user]Grüße, 世界?"
    )


def test_a_system_message_alone_is_refused_in_the_templates_words():
    with pytest.raises(ChatTemplateError, match="System role not supported"):
        rendered(NO_SYSTEM, CONVERSATION[:1])


def test_a_conversation_refused_for_another_reason_stays_refused():
    source = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(ChatTemplateError, match="must alternate"):
        rendered(source, [*USER, *USER])


def test_tools_for_a_template_that_knows_none_are_refused_not_dropped():
    assert not template(CHATML).knows_tools
    with pytest.raises(ChatTemplateError, match="knows no tools"):
        rendered(CHATML, tools=TOOLS)


def test_tool_call_arguments_as_text_become_the_object_that_templates_quote():
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": "ü"}'}}
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}"
        "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    assert rendered(source, messages) == 'Hi{"a": "ü"}'
    assert call["function"]["arguments"] == '{"a": "ü"}'


@pytest.mark.parametrize("arguments", ["{broken", "[1]", ""])
def test_arguments_that_are_no_json_object_are_quoted_as_they_are(arguments):
    call = {"function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    assert rendered("{{ messages[0].tool_calls[0].function.arguments }}", messages) == arguments


def test_empty_tool_calls_are_left_out():
    messages = [{"role": "assistant", "content": "x", "tool_calls": None}]
    assert rendered("{{ 'tool_calls' in messages[0] }}", messages) == "False"


def test_the_callers_messages_are_not_changed():
    before = json.dumps(CONVERSATION)
    rendered(NO_SYSTEM, CONVERSATION)
    assert json.dumps(CONVERSATION) == before


def test_threads_share_a_template():
    one, results = template(CHATML), []

    def work(i):
        for _ in range(20):
            results.append(one.render([{"role": "user", "content": str(i)}]).count(str(i)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [1] * 80


def test_importing_the_module_does_not_import_jinja():
    code = "import sys, edge_runtime.text.chat_template; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- the templates of real models

REAL = Path(__file__).parents[3] / "shared" / "data" / "chat_templates"
REAL_FILES = sorted(REAL.glob("*.jinja")) or [
    pytest.param(None, marks=pytest.mark.skip(reason=f"no templates at {REAL}"))
]
KNOW_TOOLS = ("LFM2.5", "Hermes", "Qwen3", "Llama-3.2", "Mistral-Nemo")


def real(file):
    return ChatTemplate(file.read_text(encoding="utf-8"), special_tokens=TOKENS)


@pytest.mark.parametrize("file", REAL_FILES, ids=lambda f: f and f.stem)
@pytest.mark.parametrize("as_parts", [False, True], ids=["strings", "parts"])
def test_a_real_template_renders_a_conversation(file, as_parts):
    messages = [{**m, "content": text_parts(m["content"])} if as_parts else m for m in CONVERSATION]
    prompt = real(file).render(messages)
    positions = [prompt.index(m["content"]) for m in CONVERSATION]
    assert positions[1:] == sorted(positions[1:])
    assert real(file).render(CONVERSATION) == prompt


@pytest.mark.parametrize("file", REAL_FILES, ids=lambda f: f and f.stem)
def test_a_real_template_renders_tools_where_it_has_them(file):
    one = real(file)
    assert one.knows_tools == any(name in file.stem for name in KNOW_TOOLS)
    if one.knows_tools:
        prompt = one.render(CONVERSATION, tools=TOOLS)
        assert "get_weather" in prompt
        assert "größte Stadt" in prompt


@pytest.mark.parametrize("file", REAL_FILES, ids=lambda f: f and f.stem)
def test_a_real_template_renders_a_tool_call_and_its_result(file):
    one = real(file)
    if not one.knows_tools:
        pytest.skip("knows no tools")
    call = {
        "id": "abcdefghi",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Köln"}'},
    }
    messages = [
        *CONVERSATION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "12 °C, rain"},
    ]
    prompt = one.render(messages, tools=TOOLS)
    assert "12 °C, rain" in prompt
    assert '\\"city\\"' not in prompt
    if "LFM2" not in file.stem:  # which writes calls only as an assistant's own text
        assert '{"city": "Köln"}' in prompt


def find_real(name):
    matching = [f for f in REAL.glob("*.jinja") if name in f.stem]
    if not matching:
        pytest.skip(f"no template {name} at {REAL}")
    return real(matching[0])


def test_gemma_takes_the_system_message_into_the_first_user_turn():
    assert find_real("gemma-2").render(CONVERSATION) == (
        "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n"
        "<start_of_turn>model\nHello!<end_of_turn>\n"
        "<start_of_turn>user\nGrüße, 世界?<end_of_turn>\n<start_of_turn>model\n"
    )


def test_qwen_thinks_unless_told_not_to():
    one = find_real("Qwen3")
    assert one.render(USER).endswith("<|im_start|>assistant\n")
    assert one.render(USER, extra={"enable_thinking": False}).endswith("<think>\n\n</think>\n\n")


def test_llama_takes_the_date_it_is_given():
    prompt = find_real("Llama-3.2").render(USER, extra={"date_string": "26 Jul 2024"})
    assert prompt == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi"
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_mistral_quotes_its_refusal():
    with pytest.raises(ChatTemplateError, match="conversation roles must alternate"):
        find_real("Mistral-Nemo").render([*USER, *USER])
