//go:build !delays

package delay

// At does nothing in this build.
func At(Point) {}
