package userapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/stowage-io/stowage/api/user"
)

// OfClaim is a request about a claim. It is exported for the same reason as Named.
type OfClaim struct {
	Name string `path:"name" doc:"The name of the claim"`
	Waiting
}

type claimArgs struct {
	OfClaim
	Body user.ClaimRequest
}

// registerClaims adds the operations on claims.
func (h *Handler) registerClaims() {
	b := h.config.Backend
	read(h, "claims", "List the claims", func(ctx context.Context) (user.ClaimList, error) {
		all, err := b.Claims(ctx, nil)
		return user.ClaimList{Claims: all}, err
	})
	one := func(method, id string, needed access, summary string) huma.Operation {
		operation := h.operation(method, "claims/{name}", needed, summary)
		operation.OperationID = id
		return operation
	}
	huma.Register(h.api, one(http.MethodGet, "get-claim", toRead, "Show a claim"), func(ctx context.Context, args *OfClaim) (*body[user.Claim], error) {
		return h.settleClaim(ctx, args)
	})
	put := one(http.MethodPut, "put-claim", toChange, "Make sure that a claim exists: it gets storage that exists, or that is made")
	huma.Register(h.api, put, func(ctx context.Context, args *claimArgs) (*body[user.Claim], error) {
		_, err := args.wait() // before anything is changed
		if err == nil {
			err = b.Claim(ctx, args.Name, args.Body)
		}
		if err != nil {
			return nil, problemOf(err)
		}
		return h.settleClaim(ctx, &args.OfClaim)
	})
	remove := one(http.MethodDelete, "delete-claim", toChange, "Delete a claim, and destroy its storage or retain it, as the claim says")
	huma.Register(h.api, remove, func(ctx context.Context, args *OfClaim) (*resource, error) {
		_, err := args.wait()
		var claim user.Claim
		if err == nil {
			claim, err = h.claim(ctx, args.Name)
		}
		if err == nil {
			err = b.Unclaim(ctx, args.Name)
		}
		storage := &Named{Name: claim.StorageName, Waiting: args.Waiting}
		switch {
		case err != nil:
			return nil, problemOf(err)
		case claim.Status == user.ClaimLost:
			return newResource([]user.Storage{}), nil
		case claim.Request.ReclaimPolicy != user.ReclaimDelete:
			storage.Wait = "" // it stays
		}
		return h.settleRemoved(ctx, storage)
	})
}

func (h *Handler) claim(ctx context.Context, name string) (user.Claim, error) {
	found, err := h.config.Backend.Claims(ctx, []string{name})
	if err != nil {
		return user.Claim{}, err
	}
	return found[0], nil
}

// settleClaim waits, as long as the request says, until nothing is being done for the storage of a claim.
// It returns the claim as it is then.
func (h *Handler) settleClaim(ctx context.Context, args *OfClaim) (*body[user.Claim], error) {
	wait, err := args.wait()
	if err != nil {
		return nil, problemOf(err)
	}
	claim, err := h.claim(ctx, args.Name)
	if err == nil && wait > 0 && claim.Status == user.ClaimBound {
		if err = h.await(ctx, []string{claim.StorageName}, wait, settled); err == nil {
			claim, err = h.claim(ctx, args.Name)
		}
	}
	return &body[user.Claim]{claim}, problemOf(err)
}
