package api

import "net/http"

// AccessorMethods are the methods that a server must offer.
var AccessorMethods = accessorMethods

// WithTransport returns the configuration with a replacement for the network.
func WithTransport(c Config, transport http.RoundTripper) Config {
	c.transport = transport
	return c
}
