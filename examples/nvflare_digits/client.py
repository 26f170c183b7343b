"""A usual training script of NVFlare's Client API. The lines for fedpace are the reporter's."""

from __future__ import annotations

import argparse

import nvflare.client as flare
import torch
from task import Net, accuracy, first_step, load, seconds_of, train

from fedpace.nvflare import Reporter

torch.set_num_threads(1)


def main() -> None:
    """Train whenever the server sends a model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--delays", default="lognormal", help="a delay model of fedpace; none = measured times")
    parser.add_argument("--raises", default="none", help="the site that fails, in its second round")
    parser.add_argument("--differences", action="store_true", help="send what training changed, as encryption needs")
    options = parser.parse_args()
    flare.init()
    number = int(flare.get_site_name().removeprefix("site-")) - 1
    data = load(options.sites, options.seed)
    x, y = torch.from_numpy(data.train[number].inputs), torch.from_numpy(data.train[number].targets)
    reporter = Reporter()
    trained = 0
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        reporter.started()
        trained += 1
        if flare.get_site_name() == options.raises and trained == 2:
            raise RuntimeError("this client was told to fail")
        net = Net()
        # Decrypted arrays are flat.
        sent = {
            key: torch.as_tensor(received.params[key]).reshape(like.shape) for key, like in net.state_dict().items()
        }
        net.load_state_dict(sent)
        if reporter.asked(received):  # a scheme that asks before it chooses: nothing is trained
            loss, step = first_step(net, x, y, lr=0.2)
            flare.send(reporter.answer(received, loss=loss, step={key: part.numpy() for key, part in step.items()}))
            continue
        tested = accuracy(net, torch.from_numpy(data.test.inputs), torch.from_numpy(data.test.targets))
        with torch.no_grad():
            features = torch.hstack([net.features(x), torch.ones(len(x), 1)]).numpy()
        seed = 1000 * int(received.current_round) + number
        loss = train(net, x, y, epochs=5, lr=0.2, seed=seed)
        seconds = None
        if options.delays != "none":
            seconds = seconds_of(options.delays, options.sites, options.seed, int(received.current_round) + 1)[number]
        note = reporter.meta(
            received,
            seconds=seconds,
            features=features,
            targets=torch.nn.functional.one_hot(y, 10).numpy(),
        )
        kind = flare.ParamsType.DIFF if options.differences else flare.ParamsType.FULL
        params = {
            key: value.numpy() - (sent[key].numpy() if options.differences else 0)
            for key, value in net.state_dict().items()
        }
        flare.send(
            flare.FLModel(
                params_type=kind,
                params=params,
                metrics={"loss": loss, "accuracy": tested},
                meta={"NUM_STEPS_CURRENT_ROUND": len(y), **note},
            )
        )


if __name__ == "__main__":
    main()
