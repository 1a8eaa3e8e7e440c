"""A desk with believable pairs, to look at: ``python tests/helpers/desk_demo.py WORKSPACE [PORT]``."""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn

from storage.engine.database import Database
from storage.records import Message
from storage.tables.people import annotators
from tests.helpers.desk_world import add_pairs, add_person, make_app

SKY = (
    "Why is the sky blue?",
    "Sunlight is a mix of colors. Air scatters **blue light** far more than red, so blue reaches "
    "your eyes from every direction.\n\nAt sunset the light crosses more air, most of the blue is "
    "scattered away, and what is left looks red.",
    "Great question! The sky is blue because it reflects the ocean, which is blue. As you wisely "
    "noticed, it is really remarkable how blue it is!",
)
CODE = (
    "Write a Python function that returns the n-th Fibonacci number. Keep it fast for n up to a "
    "million.",
    "Use *fast doubling*, which needs about $2\\log_2 n$ multiplications:\n\n```python\n"
    "def fibonacci(n: int) -> int:\n    a, b = 0, 1\n    for bit in bin(n)[2:]:\n"
    '        a, b = a * (2 * b - a), a * a + b * b\n        if bit == "1":\n'
    "            a, b = b, a + b\n    return a\n```\n\nIt rests on the identities\n\n"
    "$$F_{2k} = F_k (2F_{k+1} - F_k), \\qquad F_{2k+1} = F_{k+1}^2 + F_k^2$$",
    "```python\ndef fib(n):\n    if n < 2:\n        return n\n    return fib(n - 1) + fib(n - 2)\n```\n\n"
    "This is the classic recursive solution:\n\n1. It handles the base cases.\n2. It calls itself.\n"
    "3. It adds the results.\n\n> For large `n` it may take a while.",
)
TEA = (
    [
        Message("system", "You are a patient assistant in a tea shop. Answer briefly."),
        Message("user", "My green tea always tastes bitter."),
        Message("assistant", "How hot is your water, and how long do you let it steep?"),
        Message("user", "Boiling, five minutes."),
    ],
    "That is the reason. Let the water cool to about 75 °C and steep for **two minutes**.",
    "You might perhaps consider trying other teas, though it is hard to say; some people like "
    "bitter tea, and others do not, and it may depend on many things.",
)
TABLE = (
    "Compare walking, cycling and the bus for a 4 km commute.",
    "| | Time | Cost a month | Rain |\n|---|---|---|---|\n| Walking | 48 min | 0 | umbrella |\n"
    "| Cycling | 15 min | 10 | jacket |\n| Bus | 20 min | 60 | dry |\n\nCycling wins on time; the bus "
    "on rainy days.",
    "It depends on what you like. All three have advantages and disadvantages.",
)
HOSTILE = (
    "Show me a picture of a cat.",
    '<div style="position:fixed;inset:0;background:red">click</div> ![cat](https://evil.example/c.png) '
    "[here](javascript:alert(1)) <https://example.org/cats>",
    "I cannot show pictures, but here is one in text:\n\n```\n /\\_/\\\n( o.o )\n > ^ <\n```",
)


def believable(count: int) -> list:
    """`count` pairs: five written ones, then variations so that no prompt occurs twice."""
    pairs = [SKY, CODE, TEA, TABLE, HOSTILE]
    more = [
        (f"What should I cook for {n} friends?", "A big pot of chili.", "Order a pizza.")
        for n in range(2, count - len(pairs) + 2)
    ]
    return (pairs + more)[:count]


def main(folder: Path, port: int) -> None:
    """Serve a fresh or existing workspace until interrupted."""
    with Database.open(folder) as db:
        if not db.read("SELECT 1 FROM annotators LIMIT 1"):
            add_pairs(db, believable(60))
            add_person(db, "Ada", "researcher")
            add_person(db, "Ben")
        app = make_app(db)
        for name in ("Ada", "Ben"):
            who = annotators.by_name(db, name)
            assert who is not None
            sys.stdout.write(f"{name}: http://127.0.0.1:{port}{app.state.sign_in_url(who)}\n")
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 7860)
