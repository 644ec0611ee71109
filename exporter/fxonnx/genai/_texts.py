"""Texts with the kinds of tokens that language models read."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["MEASURED", "VERIFIED", "tokens_of"]

MEASURED = """\
The kitchen window looks over a narrow yard where my neighbour keeps six hens. Every evening at about seven \
she comes out with a bowl of grain, and they run to her as if they had not eaten for a week. "You would think \
I starve them," she says, and laughs. Last spring a fox got in, and for some days there were only two left.

Question: What is the boiling point of water at sea level?
Answer: Water boils at 100 degrees Celsius (212 degrees Fahrenheit) at a pressure of one atmosphere. At higher \
altitudes the pressure is lower, and water boils at a lower temperature: in Denver, at 1,609 metres, it is \
about 95 degrees.

def average(values):
    if not values:
        raise ValueError("an empty list has no average")
    total = 0.0
    for value in values:
        total += value
    return total / len(values)

The treaty of 1648 ended thirty years of war in central Europe. Historians disagree about the number of dead, \
but in some regions more than half of the population had been lost to battle, hunger and disease. Trade \
recovered slowly; Amsterdam and London took the trade of the cities of the Rhine.

User: I would like to learn to play the guitar. How should I begin?
Assistant: That is a great idea! Here are some steps to get started:
1. Choose a guitar that is comfortable to hold. A classical guitar has softer strings.
2. Learn to tune it. Most beginners use a free app on their phone.
3. Practise three simple chords (G, C and D) for ten minutes every day.
4. Pick a song that you love and play it slowly, even if it sounds bad at first.

Photosynthesis converts light into chemical energy. In the first stage, pigments in the thylakoid membranes \
absorb light, split water and release oxygen; in the second, the enzyme rubisco fixes carbon dioxide into \
sugars. The overall reaction is 6 CO2 + 6 H2O -> C6H12O6 + 6 O2. Plants that live in hot and dry places have \
evolved other ways to collect carbon at night, when less water evaporates.

Dear Ms. Alvarez, thank you for your letter of March 3. We are sorry to hear that the parcel arrived damaged, \
and we will send a new one at our expense by Friday. Please keep the box, as the carrier may want to inspect \
it. If you have further questions, call us at any time between 9 a.m. and 5 p.m. Yours sincerely, Thomas Reed.

{"name": "oak table", "price": 249.5, "in_stock": true, "tags": ["furniture", "wood"], "size": {"width": 120}}

She had never seen so much snow. The train stood still in the middle of nowhere, and through the frosted glass \
the fields were white up to a line of black trees. Nobody in the carriage spoke. An old man took an orange out \
of his bag, peeled it with great care and offered half of it to the boy who sat across from him. Outside it \
was getting dark."""
"""The text by whose activations the importance of features is measured."""

VERIFIED = """\
The harbour had been quiet since the end of the summer. On most mornings only two boats left before sunrise, \
and the old men who mended nets on the quay knew the sound of each engine. When the ferry company announced \
that it would stop its service to the islands in November, nobody was surprised, but everybody was angry. The \
mayor called a meeting in the school, because the town hall was being repaired, and more than three hundred \
people came. They sat on chairs that were made for children and listened to a man from the capital, who showed \
them a chart with falling numbers of passengers. He said that the company had lost money for six years, and \
that the government could not pay the difference for ever. A teacher asked him whether he had ever been on the \
islands in winter. He had not. She told him that eleven of her pupils crossed the water every day, that the \
only doctor lived on the mainland, and that the last time the ferry had failed for a week, a woman had given \
birth in a fishing boat. The man wrote this down. After the meeting a group of fishermen, two nurses and the \
owner of the bakery stayed to talk. They had an idea which seemed simple at first: if each of the nine \
hundred households paid a small sum every month, they could buy a second-hand boat and run it themselves. The \
baker, who had studied economics before she took over the shop from her father, did the calculation on the \
back of an envelope. The fuel alone would cost more than they could collect. But if the boat also carried the \
mail, the bread and the fish, and if it did not sail empty in either direction, the sum was nearly right."""
"""Another text, by which the exported model is compared with the original."""


def tokens_of(text: str, model: Any, tokenizer: Any, most: int) -> torch.Tensor:
    """The first tokens of a text, int64 of shape (1, length), that the model has embeddings for.

    Args:
        text: The text.
        model: A language model of transformers.
        tokenizer: Its tokenizer.
        most: The largest number of tokens.
    """
    config = model.config.get_text_config(decoder=True)
    longest = min(most, getattr(config, "max_position_embeddings", None) or most)
    ids = tokenizer(text, truncation=True, max_length=longest).input_ids
    tokens = torch.tensor([list(ids)], dtype=torch.int64, device=model.device)
    return tokens.clamp(max=config.vocab_size - 1)
