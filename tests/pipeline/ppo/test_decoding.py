"""What the reward reads of a response, and what it cannot see."""

from pipeline.ppo.rewards import Decoder
from tests.helpers.ppo_helpers import EOS, PAD, tiny_model, tiny_tokenizer, tiny_trainer


def test_what_decodes_to_nothing_is_counted_by_hand():
    decoder = Decoder(tiny_tokenizer(), [EOS, 7])
    assert decoder.text([2, PAD, 3, EOS]) == "w2 w3"
    assert decoder.text([2, 3, 7]) == "w2 w3"  # ends a response without being special
    # Of 4 + 3 + 2 + 1 sampled tokens three decode to nothing: a padding token, and an
    # end-of-text and a padding token that do not stand at the end.  Ends are no loss.
    responses = [[2, PAD, 3, EOS], [EOS, 4, PAD], [5, EOS], [EOS]]
    assert decoder.unseen_share(responses) == 3 / 10


def test_ids_beyond_the_tokenizer_are_unseen():
    decoder = Decoder(tiny_tokenizer(16), [EOS])
    assert decoder.text([2, 40]) == "w2"
    assert decoder.unseen_share([[2, 40, 41]]) == 2 / 3


def test_the_metric_is_what_the_policy_sampled_and_the_reward_did_not_read():
    model = tiny_model()
    seen = []

    def reward(_, texts):
        seen.append(texts)
        return [float(len(text)) for text in texts]

    update = next(tiny_trainer(model=model, reward=reward, rollouts=64, minibatch=64).run())
    words = sum(len(text.split()) for text in seen[-1])
    sampled = sum(sample.length for sample in update.samples)
    ends = sum(sample.finish_reason == "stop" for sample in update.samples)
    assert update.metrics["completion/unseen_tokens"] == (sampled - ends - words) / sampled > 0
