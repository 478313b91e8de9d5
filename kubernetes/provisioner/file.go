package provisioner

import (
	"encoding/json"
	"path/filepath"
	"strconv"

	"github.com/juju/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stowage-io/stowage/api/user"
)

var patchOptions = metav1.PatchOptions{FieldManager: "stowage-provisioner"}

// way is how the provisioner asks for storage, which others then remove only by force.
const way = "kubernetes"

// declaration is an entry of a file that declares storage (docs/reference/spec-file.md).
type declaration struct {
	Name         string `json:"name"`
	Asker        string `json:"asker"`
	Directive    string `json:"directive"`
	Kind         string `json:"kind"`
	Machine      string `json:"machine"`
	Mount        string `json:"mount,omitempty"`
	Filesystem   string `json:"filesystem,omitempty"`
	MkfsOptions  string `json:"mkfs-options,omitempty"`
	MountOptions string `json:"mount-options,omitempty"`
}

// file returns the file that declares the storage on a machine. JSON is YAML, and leaves nothing in a
// text to interpret.
func (r *request) file(machine string) (user.ApplyArgs, error) {
	d := declaration{
		Name:      r.params.StorageName,
		Asker:     way + "/" + r.params.StorageName,
		Directive: r.class.pool + "," + strconv.FormatUint(r.params.Size, 10) + "M",
		Kind:      "block",
		Machine:   machine,
	}
	if !r.isBlock() {
		options, err := r.mountOptions()
		if err != nil {
			return user.ApplyArgs{}, err
		}
		d.Kind, d.Mount = "filesystem", r.params.Attachment.Path
		d.Filesystem, d.MkfsOptions, d.MountOptions = r.class.filesystem, r.class.mkfsOptions, options
	}
	content, err := json.Marshal(map[string][]declaration{"storage": {d}})
	return user.ApplyArgs{File: "claim " + r.claim.Namespace + "/" + r.claim.Name, Content: string(content)}, errors.Trace(err)
}

// isMountDir returns whether filesystems can be mounted in a directory.
func isMountDir(path string) bool {
	return filepath.IsAbs(path) && path == filepath.Clean(path) && path != "/"
}
