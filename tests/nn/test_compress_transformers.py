"""Models of Hugging Face: made smaller, saved with their configuration, and loaded."""

import pytest
import torch

from overt.nn import compress, load_compressed, save_compressed

transformers = pytest.importorskip("transformers")

IDS = torch.randint(5, 50, (3, 7), generator=torch.Generator().manual_seed(0))
SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def llama(heads):
    config = transformers.LlamaConfig(
        **SMALL, intermediate_size=64, num_key_value_heads=heads
    )
    return transformers.LlamaForCausalLM(config)


def bert():
    config = transformers.BertConfig(**SMALL, intermediate_size=64)
    return transformers.BertForSequenceClassification(config)


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=32
    )
    return transformers.GPT2LMHeadModel(config)


MODELS = {
    "llama": lambda: llama(4),
    "grouped queries": lambda: llama(2),
    "bert": bert,
    "gpt2": gpt2,
}


def logits(output):
    return output.logits


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_made_smaller_saved_and_loaded_with_its_configuration(
    name, tmp_path
):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    example = {"input_ids": IDS}
    small, report = compress(
        model, 0.5, example, output=logits, by="flow", of="multiply_adds"
    )
    assert report.met
    save_compressed(small, tmp_path / "small.safetensors")
    loaded = load_compressed(tmp_path / "small.safetensors")
    assert type(loaded) is type(model)
    torch.testing.assert_close(loaded(IDS).logits, small(IDS).logits, rtol=0, atol=0)
    shorter = IDS[:2, :4]
    assert loaded(shorter).logits.shape == model(shorter).logits.shape
    if model.can_generate():  # with a cache of keys and values
        words = loaded.generate(IDS, max_new_tokens=3, do_sample=False, pad_token_id=0)
        assert words.shape == (3, 10)


@pytest.mark.parametrize("heads", [4, 2])
def test_llama_loses_whole_heads_gated_units_and_features_of_the_stream(heads):
    """RMS normalization, rotary embeddings, gated units and grouped queries."""
    torch.manual_seed(0)
    model = llama(heads).eval()
    _, report = compress(
        model, 0.5, {"input_ids": IDS}, output=logits, by="flow", of="units"
    )
    changes = {
        change.layers[-1]: (change.before, change.after) for change in report.changes
    }
    for i in range(2):
        layer = f"model.layers.{i}"
        assert changes[f"{layer}.self_attn.v_proj"] == (heads, heads // 2)
        assert changes[f"{layer}.mlp.up_proj"] == (64, 32)
    assert changes["model.layers.1.mlp.down_proj"] == (32, 16)
    assert dict(report.skipped) == {"lm_head": "the model returns its units"}


def test_units_of_llama_that_nothing_reads_are_removed_without_a_change():
    torch.manual_seed(0)
    model = llama(4).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight[:, 1::2] = 0
            layer.self_attn.o_proj.weight[:, 8:24] = 0  # the second and third head
    shares = {f"model.layers.{i}.mlp.up_proj": 0.5 for i in range(2)}
    shares |= {f"model.layers.{i}.self_attn.v_proj": 0.5 for i in range(2)}
    example = {"input_ids": IDS}
    small, report = compress(model, shares, example, output=logits, by="flow")
    assert len(report.changes) == 4
    torch.testing.assert_close(
        small(IDS).logits, model(IDS).logits, rtol=1e-4, atol=1e-5
    )
