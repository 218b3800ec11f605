"""A parameter server with torch.distributed.rpc, written for torchrun: rank 0 has the weights, the others ask for them
and send gradients.

meshrun --nproc-per-node 3 examples/parameter_server.py
torchrun --nproc-per-node 3 examples/parameter_server.py"""

import argparse
import os

import torch
import torch.distributed.rpc as rpc

SERVER = "server"


class Server:
    """The weights; all gradients of a step are added before the step is taken, so that the result has one order."""

    def __init__(self, workers: int) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.workers = workers
        self.got: dict[int, list[torch.Tensor]] = {}
        self.future: torch.futures.Future = torch.futures.Future()

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


_server: list[Server] = []


def fetch() -> list[torch.Tensor]:
    """Called from workers, runs on the server."""
    return _server[0].weights()


@rpc.functions.async_execution
def send(worker: int, gradients: list[torch.Tensor]) -> torch.futures.Future:
    """Called from workers, runs on the server; answers with the new weights when all workers have sent theirs."""
    server = _server[0]
    future = server.future
    server.got[worker] = gradients
    if len(server.got) == server.workers:
        for index, parameter in enumerate(server.model.parameters()):
            parameter.grad = sum(server.got[number][index] for number in sorted(server.got)) / server.workers
        server.optimizer.step()
        server.got, server.future = {}, torch.futures.Future()
        future.set_result(server.weights())
    return future


def train(rank: int, steps: int) -> None:
    model = torch.nn.Linear(4, 1)
    weights = rpc.rpc_sync(SERVER, fetch)
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(rank))
    target = inputs.sum(1, keepdim=True)
    for step in range(steps):
        with torch.no_grad():
            for parameter, weight in zip(model.parameters(), weights, strict=True):
                parameter.copy_(weight)
        loss = torch.nn.functional.mse_loss(model(inputs), target)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        weights = rpc.rpc_sync(SERVER, send, args=(rank, list(gradients)))
        print(f"worker {rank}  step {step}  loss {loss.item():.5f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == 0:
        _server.append(Server(world - 1))
    rpc.init_rpc(SERVER if rank == 0 else f"worker{rank}", rank=rank, world_size=world)
    if rank > 0:
        train(rank, args.steps)
    rpc.shutdown()  # waits until nobody has a question left
    if rank == 0:
        print(f"weights {[round(value, 5) for value in _server[0].model.weight.flatten().tolist()]}")


if __name__ == "__main__":
    main()
