package csi_test

import (
	"context"
	"fmt"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// rpc is an RPC of the specification.
type rpc struct{ protoreflect.MethodDescriptor }

// rpcs returns those of the services that a driver may have, by service.
func rpcs() (all []rpc) {
	for _, service := range []protoreflect.Name{"Identity", "Controller", "Node"} {
		methods := spec.File_csi_proto.Services().ByName(service).Methods()
		for n := range methods.Len() {
			all = append(all, rpc{methods.Get(n)})
		}
	}
	return all
}

// rpcNamed returns the RPC with a name.
func rpcNamed(t testing.TB, name string) rpc {
	t.Helper()
	for _, r := range rpcs() {
		if string(r.Name()) == name {
			return r
		}
	}
	t.Fatalf("there is no RPC %s", name)
	return rpc{}
}

// path is how a client names the RPC.
func (r rpc) path() string { return fmt.Sprintf("/%s/%s", r.Parent().FullName(), r.Name()) }

// newMessage returns an empty message of the package of the specification.
func newMessage(t testing.TB, d protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	typ, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return typ.New().Interface()
}

// invoke makes a call.
func (f *fixture) invoke(ctx context.Context, r rpc, request proto.Message) (proto.Message, error) {
	response := newMessage(f.TB, r.Output())
	err := f.conn.Invoke(ctx, r.path(), request, response)
	return response, err
}
