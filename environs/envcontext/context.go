// Package envcontext carries what a provider call needs from its caller: cancellation, and a
// way to report that the credential no longer works.
package envcontext

import "context"

// ProviderCallContext is the context of one call to a storage provider.
type ProviderCallContext interface {
	context.Context

	// InvalidateCredential reports that the provider was refused with the current credential,
	// and why. Later calls may have another credential.
	InvalidateCredential(reason string) error
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
