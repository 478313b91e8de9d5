package csi

import (
	"math"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

const mib = 1 << 20

// maxMiB is the largest size that has a number of bytes in an answer.
const maxMiB = math.MaxInt64 / mib

// sizeRange is the size in MiB that a capacity range asks for, and the largest that it allows.
type sizeRange struct{ least, most uint64 }

// parseRange returns the sizes that a capacity range asks for: at least one MiB, and without a required
// size the smaller of the default and the limit.
func parseRange(capacity *csi.CapacityRange, byDefault uint64) (sizeRange, error) {
	required, limit := capacity.GetRequiredBytes(), capacity.GetLimitBytes()
	if required < 0 || limit < 0 {
		return sizeRange{}, fail(codes.InvalidArgument, "capacity_range: a size is negative: leave it out")
	}
	r := sizeRange{most: maxMiB}
	if limit > 0 {
		r.most = uint64(limit) / mib
	}
	switch {
	case required > 0:
		r.least = (uint64(required)-1)/mib + 1
	default:
		r.least = min(byDefault, r.most)
	}
	r.least = max(r.least, 1)
	if r.least > r.most {
		return sizeRange{}, fail(codes.OutOfRange, "capacity_range: volumes have whole MiB, and none is between %d and %d bytes: raise limit_bytes to %d",
			required, limit, r.least*mib)
	}
	return r, nil
}

// bytes returns a size in MiB as answers have it.
func bytes(size uint64) int64 { return int64(min(size, maxMiB)) * mib }
