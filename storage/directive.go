package storage

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"

	"github.com/juju/errors"
)

// Directive is a user's request for storage: how much, how many instances, and from which
// pool.
type Directive struct {
	// Pool is the name of the pool, or empty for the default pool.
	Pool string

	// Size is the least size of each instance in MiB, or zero for the default size.
	Size uint64

	// Count is how many instances the user wants. It is at least one in parsed directives.
	Count uint64
}

// sizeSuffixes are the multipliers of sizes, each 1024 times its predecessor.
const sizeSuffixes = "MGTPEZY"

// sizeForms says for people how sizes are written.
const sizeForms = "512M, 10G, 10Gi or 10GiB, with a unit of M, G, T, P, E, Z or Y"

var (
	poolPattern  = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9-]*$`)
	countPattern = regexp.MustCompile(`^-?[0-9]+$`)
	sizePattern  = regexp.MustCompile(`^(-?)([0-9]+(?:\.[0-9]+)?)([` + sizeSuffixes + `])(?:iB?|B)?$`)
)

// IsValidPoolName reports whether a directive can contain the pool name: a letter, then
// letters, digits and hyphens.
func IsValidPoolName(name string) bool {
	return poolPattern.MatchString(name)
}

// ParseDirective parses a directive: comma-separated fields in any order, each at most once.
// It skips empty fields.
//
//   - a pool: a name that satisfies [IsValidPoolName];
//   - a count: a positive integer, 1 by default;
//   - a size: a decimal number and one of the suffixes M G T P E Z Y, optionally
//     followed by B, i or iB. Multipliers are powers of 1024, and the size is rounded
//     up to whole MiB.
//
// At least one field is required. Errors satisfy errors.IsNotValid.
func ParseDirective(s string) (Directive, error) {
	var d Directive
	var haveCount, haveSize bool
	for _, field := range strings.Split(s, ",") {
		switch {
		case field == "":
		case IsValidPoolName(field):
			if d.Pool != "" {
				return Directive{}, errors.NotValidf("pool name is already set to %q, new value %q", d.Pool, field)
			}
			d.Pool = field
		case countPattern.MatchString(field):
			count, err := parseCount(field)
			if err != nil {
				return Directive{}, errors.Trace(err)
			}
			if haveCount {
				return Directive{}, errors.NotValidf("storage instance count is already set to %d, new value %d", d.Count, count)
			}
			d.Count, haveCount = count, true
		case sizePattern.MatchString(field):
			size, err := parseSize(field)
			if err != nil {
				return Directive{}, errors.Trace(err)
			}
			if haveSize {
				return Directive{}, errors.NotValidf("storage size is already set to %d, new value %d", d.Size, size)
			}
			d.Size, haveSize = size, true
		default:
			return Directive{}, errors.NotValidf("unrecognized storage directive field %q (want a pool, a count or a size such as "+sizeForms+")", field)
		}
	}
	if d.Pool == "" && !haveCount && !haveSize {
		return Directive{}, errors.NotValidf("storage directive %q without pool, count or size", s)
	}
	if !haveCount {
		d.Count = 1
	}
	return d, nil
}

// parseCount parses a field that matches countPattern.
func parseCount(field string) (uint64, error) {
	if strings.HasPrefix(field, "-") || strings.Trim(field, "0") == "" {
		return 0, errors.NotValidf("storage instance count %q (must be greater than zero)", field)
	}
	count, err := strconv.ParseUint(field, 10, 64)
	if err != nil {
		return 0, errors.NotValidf("storage instance count %q (too large)", field)
	}
	return count, nil
}

// ParseSize parses a size as in a directive, alone and not zero, and returns it in MiB. Errors satisfy
// errors.IsNotValid.
func ParseSize(s string) (uint64, error) {
	if sizePattern.MatchString(s) {
		if size, err := parseSize(s); err == nil && size > 0 {
			return size, nil
		}
	}
	return 0, errors.NewNotValid(nil, fmt.Sprintf("%q is not a size: write one such as "+sizeForms, s))
}

// parseSize parses a field that matches sizePattern. The arithmetic is exact, so that neither
// a large number nor a long fraction is rounded to a smaller size.
func parseSize(field string) (uint64, error) {
	parts := sizePattern.FindStringSubmatch(field)
	sign, number, suffix := parts[1], parts[2], parts[3]
	if sign != "" {
		return 0, errors.NotValidf("storage size %q (must not be negative)", field)
	}
	size, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, errors.NotValidf("storage size %q", field)
	}
	shift := 10 * uint(strings.Index(sizeSuffixes, suffix))
	numerator := new(big.Int).Lsh(size.Num(), shift)
	mib, rest := numerator.QuoRem(numerator, size.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		mib.Add(mib, big.NewInt(1))
	}
	if !mib.IsUint64() {
		return 0, errors.NotValidf("storage size %q (too large)", field)
	}
	return mib.Uint64(), nil
}

// ParseDirectivesMap parses arguments of the form "name=directive" into a map by name. A bare
// "name" means one instance, or is an error if mustHaveDirectives is true. Errors satisfy
// errors.IsNotValid and name the storage.
func ParseDirectivesMap(args []string, mustHaveDirectives bool) (map[string]Directive, error) {
	directives := make(map[string]Directive, len(args))
	for _, arg := range args {
		name, value, hasValue := strings.Cut(arg, "=")
		if name == "" {
			return nil, errors.NotValidf("storage argument %q with an empty name", arg)
		}
		if _, ok := directives[name]; ok {
			return nil, errors.NotValidf("storage %q given more than once", name)
		}
		directive := Directive{Count: 1}
		switch {
		case hasValue:
			var err error
			if directive, err = ParseDirective(value); err != nil {
				return nil, errors.Annotatef(err, "parsing directive of storage %q", name)
			}
		case mustHaveDirectives:
			return nil, errors.NotValidf("storage %q without a directive (want %s=DIRECTIVE)", name, name)
		}
		directives[name] = directive
	}
	return directives, nil
}

// ToString formats a directive so that [ParseDirective] reads back the same directive. It
// omits zero fields, and a count of zero reads back as one. If all fields are zero, or the
// pool name is malformed, the error satisfies errors.IsNotValid.
func ToString(d Directive) (string, error) {
	if d == (Directive{}) {
		return "", errors.NotValidf("storage directive without pool, count or size")
	}
	var fields []string
	if d.Pool != "" {
		if !IsValidPoolName(d.Pool) {
			return "", errors.NotValidf("pool name %q", d.Pool)
		}
		fields = append(fields, d.Pool)
	}
	if d.Count > 0 {
		fields = append(fields, strconv.FormatUint(d.Count, 10))
	}
	if d.Size > 0 {
		fields = append(fields, strconv.FormatUint(d.Size, 10)+"M")
	}
	return strings.Join(fields, ","), nil
}
