// Package envcontext carries what a provider call needs from its caller: cancellation, a way to
// report that the credential no longer works, and which of several servers it is.
package envcontext

import "context"

// ProviderCallContext is the context of one call to a storage provider.
type ProviderCallContext interface {
	context.Context

	// InvalidateCredential reports that the provider was refused with the current credential,
	// and why. Later calls may have another credential.
	InvalidateCredential(reason string) error
}

type termKey struct{}

// WithTerm returns a context for calls of a worker that runs on one of several servers at a time. The
// later one has the greater term, which is not 0. A provider that refuses calls with a smaller term
// than it has seen is safe from calls of a server that has been replaced.
func WithTerm(ctx context.Context, term uint64) context.Context {
	return context.WithValue(ctx, termKey{}, term)
}

// Term returns the term of a context, or 0 if there is only one server.
func Term(ctx context.Context) uint64 {
	term, _ := ctx.Value(termKey{}).(uint64)
	return term
}

// New returns a ProviderCallContext on ctx for callers that manage no credential: its
// InvalidateCredential does nothing.
func New(ctx context.Context) ProviderCallContext {
	return withoutCredential{ctx}
}

type withoutCredential struct {
	context.Context
}

// InvalidateCredential implements [ProviderCallContext].
func (withoutCredential) InvalidateCredential(string) error {
	return nil
}
