package provisioner

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// refusal is the error for a claim that cannot be met as it is.
type refusal struct{ message string }

func refuse(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// Error implements error.
func (r *refusal) Error() string { return r.message }

// GRPCStatus tells the controller that the claim is infeasible: it tries again much later.
func (r *refusal) GRPCStatus() *status.Status { return status.New(codes.InvalidArgument, r.message) }
