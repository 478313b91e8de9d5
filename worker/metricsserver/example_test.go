package metricsserver_test

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-io/stowage/worker/metricsserver"
	"github.com/stowage-io/stowage/worker/storageprovisioner/metrics"
)

// A host without an HTTP server of its own serves the counters of its storage provisioner.
func Example() {
	collector := metrics.New(metrics.Options{}) // the Observer in the worker's Config
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	server, err := metricsserver.New(metricsserver.Config{Address: "localhost:0", Gatherer: registry})
	if err != nil {
		fmt.Println(err)
		return
	}

	response, err := http.Get("http://" + server.Address().String() + metricsserver.DefaultPath)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(response.Status)
	response.Body.Close()
	http.DefaultClient.CloseIdleConnections()

	server.Kill()
	fmt.Println(server.Wait())
	// Output:
	// 200 OK
	// <nil>
}
