"""The server under the load of MLPerf LoadGen, if that is installed (it comes with the benchmarks)."""

from __future__ import annotations

import http.client
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_server import Running, folder, inputs, running  # noqa: F401 - fixtures

from onefold.model_server.payloads import npy_of

loadgen = pytest.importorskip("mlperf_loadgen")
QUERIES_PER_S, DURATION_MS, CLIENTS = 50, 600, 16


def test_every_query_of_a_poisson_load_is_answered(running: Running, inputs: Any, tmp_path: Path) -> None:  # noqa: F811
    bodies = [npy_of(inputs[at : at + 1]) for at in range(len(inputs))]
    statuses: list[int] = []
    local, connections = threading.local(), list[http.client.HTTPConnection]()

    def answer(query: Any) -> None:
        if not hasattr(local, "connection"):
            local.connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
            connections.append(local.connection)
        headers = {**running.headers, "Content-Type": "application/x-npy"}
        local.connection.request("POST", "/v1/predict", bodies[query.index], headers)
        reply = local.connection.getresponse()
        reply.read()
        statuses.append(reply.status)
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(query.id, 0, 0)])

    settings, log = loadgen.TestSettings(), loadgen.LogSettings()
    settings.scenario, settings.mode = loadgen.TestScenario.Server, loadgen.TestMode.PerformanceOnly
    settings.server_target_qps, settings.server_target_latency_ns = QUERIES_PER_S, 10**10
    settings.min_duration_ms, settings.max_duration_ms, settings.min_query_count = DURATION_MS, 20 * DURATION_MS, 1
    log.log_output.outdir, log.log_output.copy_summary_to_stdout = str(tmp_path), False
    with ThreadPoolExecutor(CLIENTS) as clients:
        system = loadgen.ConstructSUT(
            lambda queries: [clients.submit(answer, query) for query in queries], lambda: None
        )
        library = loadgen.ConstructQSL(len(bodies), len(bodies), lambda _: None, lambda _: None)
        loadgen.StartTestWithLogSettings(system, library, settings, log)
        loadgen.DestroyQSL(library)
        loadgen.DestroySUT(system)
    for connection in connections:
        connection.close()
    assert np.unique(statuses).tolist() == [200]
    summary = (tmp_path / "mlperf_log_summary.txt").read_text()
    assert "Result is : VALID" in summary or "Min queries satisfied" in summary
