package etcdkv

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"time"

	"github.com/juju/errors"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits that a member must have for a [Store].
const (
	// MaxTxnOps is the number of operations, or of conditions, of a transaction. It is etcd's
	// flag --max-txn-ops, whose default is 128.
	MaxTxnOps = 32768

	// MaxRequestBytes is the size of a transaction in bytes. It is etcd's flag
	// --max-request-bytes, whose default is 1.5 MiB.
	MaxRequestBytes = 10 << 20
)

// Dial returns a client for a [Store]: it notices a dead connection within seconds, and accepts
// requests of [MaxRequestBytes]. The endpoints are URLs, or host and port.
func Dial(endpoints []string, config *tls.Config) (*clientv3.Client, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            endpoints,
		TLS:                  config,
		DialTimeout:          5 * time.Second,
		DialKeepAliveTime:    3 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		MaxCallSendMsgSize:   MaxRequestBytes + 1<<20,
		Logger:               zap.NewNop(),
	})
	return client, errors.Annotate(err, "connecting to etcd")
}

// checkLimits asks etcd whether it accepts requests as large as the store's. It sends invalid ones:
// etcd checks their size first, and does not carry them out.
func (s *Store) checkLimits(ctx context.Context) error {
	err := s.probe(ctx, make([]clientv3.Cmp, MaxTxnOps)...)
	if errors.Is(err, rpctypes.ErrTooManyOps) {
		return tooSmall("operations in a transaction", "--max-txn-ops", MaxTxnOps)
	}
	if err == nil {
		err = s.probe(ctx, clientv3.Compare(clientv3.Value(""), "=", strings.Repeat("x", MaxRequestBytes)))
		if status.Code(errors.Cause(err)) == codes.ResourceExhausted {
			return tooSmall("bytes in a request", "--max-request-bytes", MaxRequestBytes)
		}
	}
	return errors.Annotate(err, "asking etcd for its limits")
}

func tooSmall(what, flag string, limit int) error {
	return errors.NewNotSupported(nil, fmt.Sprintf("etcd does not accept %d %s: start its members with %s=%[1]d", limit, what, flag))
}

// probe sends a transaction whose first condition has no key. It returns nil if etcd has refused
// it for that reason.
func (s *Store) probe(ctx context.Context, conditions ...clientv3.Cmp) error {
	request, cancel := s.request(ctx)
	defer cancel()
	_, err := s.client.Txn(request).If(conditions...).Commit()
	if errors.Is(err, rpctypes.ErrEmptyKey) {
		return nil
	}
	if err == nil {
		return errors.New("it has accepted an invalid transaction")
	}
	return err
}
