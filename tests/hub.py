"""Small checkpoints, and an imitation of the Hugging Face hub on this machine that serves them; and of pip."""

import hashlib
import json
import string
import subprocess
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import torch

from lipscan import models, registry
from lipscan.models.files import quiet

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "alice", "rabbit", "the", "[", "]", "."]
WORDS += [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]


def write_tokenizer(folder):
    """A WordPiece vocabulary of 63 entries, enough to spell any lower-case word."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def save(network, folder):
    """Save a network with every parameter random, biases and LayerNorm too: they are zeros and ones when made."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            norm = name.endswith("weight") and ("norm" in name.lower() or "ln_" in name)
            parameter.copy_(1 + 0.3 * noise if norm else 0.3 * noise)
    with quiet():
        network.save_pretrained(folder)
    return Path(folder)


def small_model(folder, model_type, settings):
    """A model of any type of transformers, of these settings, as a folder in Hugging Face format."""
    from transformers import CONFIG_MAPPING, AutoModel

    with quiet(), torch.random.fork_rng():
        network = AutoModel.from_config(CONFIG_MAPPING[model_type](**settings))
    return save(network, folder)


def tiny_bert(folder, **settings):
    """A BERT of 2 layers, 4 heads, width 32, with a tokenizer, as a folder in Hugging Face format."""
    from transformers import BertConfig, BertModel

    sizes = {"vocab_size": len(WORDS), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 48, "max_position_embeddings": 40}
    with torch.random.fork_rng():
        network = BertModel(BertConfig(**{**sizes, **settings}))
    return write_tokenizer(save(network, folder))


def tiny_gpt2(folder, **settings):
    """A GPT-2 of 4 layers, 3 heads, width 24, without a tokenizer, as a folder in Hugging Face format."""
    from transformers import GPT2Config, GPT2Model

    sizes = dict(vocab_size=70, n_embd=24, n_layer=4, n_head=3, n_positions=40, bos_token_id=0, eos_token_id=0)
    with torch.random.fork_rng():
        network = GPT2Model(GPT2Config(**{**sizes, **settings}))
    return save(network, folder)


def given(model, inputs, layer):
    """What the attention of one layer receives and gives when the network itself reads these inputs."""
    read = models.readings(model, inputs)[layer]
    return read.received, read.given


@contextmanager
def serve(repositories):
    """Serve folders as repositories, by name, in the layout that `huggingface_hub` asks for.

    A model is named "owner/name", a dataset "datasets/owner/name".

    Gives the address and the list of requests seen so far; both HEAD and GET, on 127.0.0.1 only.
    """
    requests = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 20

        def log_message(self, *args):
            pass

        def answer(self, status, body=b"", **headers):
            self.send_response(status)
            for key, value in {"Content-Length": len(body), "X-Repo-Commit": COMMIT, **headers}.items():
                self.send_header(key.replace("_", "-"), str(value))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_GET(self):
            path = self.path.split("?")[0]
            requests.append(f"{self.command} {path}")
            api = path.startswith("/api/models/")
            kind = "datasets/" if path.startswith("/datasets/") else ""
            parts = path.removeprefix("/api/models/").removeprefix("/datasets/").strip("/").split("/")
            folder = repositories.get(kind + "/".join(parts[:2]))
            if folder is None:
                return self.answer(404, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
            files = {str(file.relative_to(folder)): file for file in sorted(Path(folder).rglob("*")) if file.is_file()}
            if api and parts[2:3] in ([], ["revision"]):
                info = {"id": "/".join(parts[:2]), "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
                return self.answer(200, json.dumps(info).encode(), Content_Type="application/json")
            if api and parts[2] == "tree":
                tree = [
                    {
                        "type": "file",
                        "path": name,
                        "size": file.stat().st_size,
                        "oid": hashlib.sha1(file.read_bytes()).hexdigest(),
                    }
                    for name, file in files.items()
                ]
                return self.answer(200, json.dumps(tree).encode(), Content_Type="application/json")
            name = "/".join(parts[4:])
            if parts[2] != "resolve" or parts[3] not in ("main", COMMIT) or name not in files:
                return self.answer(404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found")
            body = files[name].read_bytes()
            return self.answer(200, body, ETag=f'"{hashlib.sha1(body).hexdigest()}"')

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def pip(monkeypatch, *, code=0, error="", give=None):
    """An imitation of pip, the commands it was given, and the requirements in them."""
    seen, asked = [], []

    def run(command, **options):
        seen.append(command)
        if give is not None:
            place = command[command.index("--dest") + 1]
            Path(place, give.name).write_bytes(give.read_bytes())
        asked.append(Path(command[command.index("--requirement") + 1]).read_text())
        return subprocess.CompletedProcess(command, code, "", error)

    monkeypatch.setattr(registry.subprocess, "run", run)
    return seen, asked
