package csi

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// handlers are the services of a server without a socket.
type handlers struct {
	server  *Server
	methods map[string]func(context.Context, proto.Message) (proto.Message, error)
}

// RegisterService implements grpc.ServiceRegistrar.
func (h *handlers) RegisterService(of *grpc.ServiceDesc, impl any) {
	for _, m := range of.Methods {
		h.methods[fmt.Sprintf("/%s/%s", of.ServiceName, m.MethodName)] = func(ctx context.Context, request proto.Message) (proto.Message, error) {
			decode := func(to any) error {
				proto.Merge(to.(proto.Message), request)
				return nil
			}
			response, err := m.Handler(impl, ctx, decode, h.server.intercept)
			if err != nil {
				return nil, err
			}
			return response.(proto.Message), nil
		}
	}
}

// Handlers returns a function that makes a call as a client does, in this goroutine.
func Handlers(config Config) func(ctx context.Context, method string, request proto.Message) (proto.Message, error) {
	config = config.withDefaults()
	h := &handlers{server: &Server{config: config, ctx: context.Background()}, methods: map[string]func(context.Context, proto.Message) (proto.Message, error){}}
	config.register(h)
	return func(ctx context.Context, method string, request proto.Message) (proto.Message, error) {
		return h.methods[method](ctx, request)
	}
}
