package csi

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/fsattr"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// Config configures a provider. Name, Driver and Socket are required.
type Config struct {
	// Name is the name of the provider.
	Name storage.ProviderType

	// Driver is the name that the driver gives itself. A driver with another name is not used.
	Driver string

	// Socket is the absolute path of the driver's socket.
	Socket string

	// NodeSocket is the absolute path of the socket with the node service. Empty: Socket has both
	// services.
	NodeSocket string

	// SecretsFile is the absolute path of a file with a JSON object of strings: the secrets for the
	// driver. Only its owner, root or the user of this process, may be able to read it. Empty: no
	// secrets.
	SecretsFile string

	// BlockOnly says that the driver makes no filesystems.
	BlockOnly bool

	// Environ says that any machine can have the volumes. The controller service is called for the
	// environment, and the node services by the machines, as [Plans] says.
	Environ bool

	// Orchestrator says what the drivers of machines have said about them ([storage.MachineDrivers]).
	// With Environ, nothing is attached without it.
	Orchestrator storage.OrchestratorSupplier

	// Timeout limits each call of the driver. 0: two minutes.
	Timeout time.Duration

	// AtOnce limits how many calls of the driver one bulk call makes at once. 0: 8.
	AtOnce int

	// StorageDir is the storage directory of pools without the attribute storage.ConfigStorageDir.
	// Empty: such pools are not valid.
	StorageDir string
}

// driverName is the form that the CSI specification gives the name of a driver.
var driverName = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,61}[a-zA-Z0-9])?$`)

// FieldError is the error of a [Config] with a field that is not valid. It satisfies errors.IsNotValid.
type FieldError struct {
	Field   string
	Problem string // with the remedy
}

// Error implements error.
func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// Is makes errors.Is find errors.NotValid.
func (e *FieldError) Is(target error) bool { return target == errors.NotValid }

// Validate returns a [*FieldError] if the configuration is invalid.
func (c Config) Validate() error {
	invalid := func(field, format string, args ...any) error { return &FieldError{field, fmt.Sprintf(format, args...)} }
	if !storage.IsValidProviderName(string(c.Name)) {
		return invalid("Name", "%q: write letters, digits and hyphens, with single dots and slashes between them", c.Name)
	}
	if !driverName.MatchString(c.Driver) {
		return invalid("Driver", "%q: write the name that the driver gives itself, such as hostpath.csi.k8s.io", c.Driver)
	}
	for _, path := range []struct {
		field, value string
		optional     bool
	}{{"Socket", c.Socket, false}, {"NodeSocket", c.NodeSocket, true}, {"SecretsFile", c.SecretsFile, true}} {
		if path.value == "" && path.optional {
			continue
		}
		if !filepath.IsAbs(path.value) || filepath.Clean(path.value) != path.value {
			return invalid(path.field, "%q: write an absolute path in its shortest form", path.value)
		}
	}
	if c.Timeout < 0 {
		return invalid("Timeout", "%s: write 0 or more", c.Timeout)
	}
	if c.AtOnce < 0 {
		return invalid("AtOnce", "%d: write 0 or more", c.AtOnce)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.NodeSocket == "" {
		c.NodeSocket = c.Socket
	}
	if c.Timeout == 0 {
		c.Timeout = 2 * time.Minute
	}
	if c.AtOnce == 0 {
		c.AtOnce = 8
	}
	return c
}

// New returns a provider. It does not call the driver. On systems other than Linux, its sources
// cannot be opened.
func New(config Config) (storage.Provider, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Annotate(err, "CSI provider")
	}
	config = config.withDefaults()
	return &provider{object.Provider{Type: config.Name, StorageDir: config.StorageDir}, config}, nil
}

type provider struct {
	object.Provider
	config Config
}

// VolumeSource implements [storage.Provider].
func (p *provider) VolumeSource(config *storage.Config) (storage.VolumeSource, error) {
	if p.config.Environ {
		if err := p.ValidateConfig(config); err != nil {
			return nil, errors.Trace(err)
		}
		return newEnvironSource(p.config)
	}
	dir, err := p.dir(config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return newVolumeSource(p.config, dir)
}

// Scope implements [storage.Provider].
func (p *provider) Scope() storage.Scope {
	if p.config.Environ {
		return storage.ScopeEnviron
	}
	return p.Provider.Scope()
}

// FilesystemSource implements [storage.Provider].
func (p *provider) FilesystemSource(config *storage.Config) (storage.FilesystemSource, error) {
	if p.config.onlyVolumes() {
		return nil, errors.NotSupportedf("making filesystems with provider %s", p.Type)
	}
	dir, err := p.dir(config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return newFilesystemSource(p.config, dir)
}

func (p *provider) dir(config *storage.Config) (string, error) {
	if err := p.ValidateConfig(config); err != nil {
		return "", errors.Trace(err)
	}
	return p.Dir(config)
}

// Supports implements [storage.Provider].
func (p *provider) Supports(kind storage.StorageKind) bool {
	return kind == storage.StorageKindBlock || kind == storage.StorageKindFilesystem && !p.config.onlyVolumes()
}

// onlyVolumes reports whether the provider has no source of filesystems. Those that any machine can have are
// volumes, too ([storage.MountedVolumes]).
func (c Config) onlyVolumes() bool { return c.BlockOnly || c.Environ }

// MountsVolumes implements [storage.MountedVolumes].
func (p *provider) MountsVolumes(attributes map[string]any) bool {
	mode, _ := textOf(volumeMode, attributes[volumeMode])
	return p.config.Environ && !p.config.BlockOnly && mode != modeBlock
}

// Releasable implements [storage.Provider].
func (p *provider) Releasable() bool { return true }

// ImportsByID implements [storage.IDImporter].
func (p *provider) ImportsByID() bool { return true }

// ValidateConfig implements [storage.Provider].
func (p *provider) ValidateConfig(config *storage.Config) error {
	attrs := config.Attrs()
	parsed, err := p.config.parse(attrs)
	if err == nil && parsed.block {
		_, err = fsattr.ParsePool(attrs)
	}
	if err == nil && attrs[storage.ConfigStorageDir] != nil {
		_, err = p.Dir(config)
		return errors.Trace(err)
	}
	return errors.Annotatef(err, "storage pool %q", config.Name())
}

// ValidateForK8s implements [storage.Provider]. The provider is never valid in Kubernetes, which
// uses CSI drivers itself.
func (p *provider) ValidateForK8s(map[string]any) error {
	return errors.NewNotValid(nil, fmt.Sprintf("storage provider %s is not available in Kubernetes", p.Type))
}

// attributes are what the attributes of a pool say about its volumes.
type attributes struct {
	parameters map[string]string
	// block says that volumes are block devices, with filesystems that the machine makes, if any.
	block bool
	// filesystem is the type of the filesystem that the driver makes, and flags those with which it
	// mounts it.
	filesystem string
	flags      []string
}

// volumeMode is the attribute of pools of the environment that says what their volumes are.
const (
	volumeMode     = "volume-mode"
	modeFilesystem = "filesystem" // the default
	modeBlock      = "block"
)

// maxText limits the length of a text in an attribute, in bytes, as the CSI specification does for
// all parameters together.
const maxText = 4 << 10

// parse reads the attributes of a pool, or of storage in one. The error satisfies
// errors.IsNotValid and names the attribute.
func (c Config) parse(attrs map[string]any) (attributes, error) {
	parsed := attributes{parameters: make(map[string]string), block: c.BlockOnly}
	if c.Environ && !c.BlockOnly {
		mode, err := textOf(volumeMode, cmp.Or(attrs[volumeMode], any(modeFilesystem)))
		if err != nil {
			return attributes{}, err
		}
		if mode != modeFilesystem && mode != modeBlock {
			return attributes{}, errors.NewNotValid(nil, fmt.Sprintf("attribute %q: %q: write %s or %s", volumeMode, mode, modeFilesystem, modeBlock))
		}
		parsed.block = mode == modeBlock
		attrs = maps.Clone(attrs)
		delete(attrs, volumeMode)
	}
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		if name == storage.ConfigStorageDir || parsed.block && slices.Contains(fsattr.OfPools(), name) {
			continue
		}
		text, err := textOf(name, attrs[name])
		if err != nil {
			return attributes{}, err
		}
		switch name {
		case fsattr.Type:
			parsed.filesystem = text
		case fsattr.MountOptions:
			parsed.flags = flagsOf(text)
		case fsattr.MkfsOptions:
			return attributes{}, errors.NewNotValid(nil, fmt.Sprintf("attribute %q: the driver makes the filesystem: leave it out", name))
		default:
			parsed.parameters[name] = text
		}
	}
	return parsed, nil
}

// flagsOf returns the flags in a value of the attribute "mount-options".
func flagsOf(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// textOf returns the value of an attribute as text.
func textOf(name string, value any) (string, error) {
	switch value := value.(type) {
	case string:
		if len(value) > maxText {
			return "", errors.NewNotValid(nil, fmt.Sprintf("attribute %q: it has more than %d bytes", name, maxText))
		}
		return value, nil
	case bool, int, int64, uint64, float64:
		return fmt.Sprint(value), nil
	}
	return "", errors.NewNotValid(nil, fmt.Sprintf("attribute %q is %T: write a text, a number, true or false", name, value))
}
