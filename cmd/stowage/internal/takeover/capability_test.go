package takeover

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"

	"github.com/stowage-io/stowage/storage"
)

// A guarded source has each optional capability that the environment's worker uses, since the
// worker does not see the source behind it. A capability that is new has to be added there, or here.
func TestCapabilitiesArePassedOn(t *testing.T) {
	var p, v any = provider{}, &volumes{}
	_, rate := v.(storage.RateLimiter)
	_, byPool := p.(storage.PoolSources)
	_, concurrent := v.(storage.ConcurrentSource)
	_, qualifies := v.(storage.VolumeQualifier)
	_, guards := v.(storage.VolumeDeletionGuard)
	_, filesystems := p.(storage.FilesystemQualifier)
	_, guardsFilesystems := p.(storage.FilesystemDeletionGuard)
	_, grows := v.(storage.VolumeResizer)
	_, checks := v.(storage.VolumeChecker)
	_, remarks := v.(storage.VolumeRemarker)
	_, isNew := v.(storage.NewVolumes)
	_, contexts := v.(storage.ContextSource)
	_, owners := v.(storage.VolumeOwnerLister)
	passedOn := map[string]bool{
		"RateLimiter": rate, "PoolSources": byPool, "ConcurrentSource": concurrent, "VolumeQualifier": qualifies,
		"VolumeDeletionGuard": guards, "FilesystemQualifier": filesystems, "FilesystemDeletionGuard": guardsFilesystems,
		"VolumeResizer": grows, "VolumeChecker": checks, "VolumeRemarker": remarks, "NewVolumes": isNew, "VolumeOwnerLister": owners,
		"ContextSource": contexts,
		// The guard itself uses it.
		"AttachmentLister": true,
		// Commands use these, on the source itself.
		"VolumeImporter": true, "VolumeParamsImporter": true, "FilesystemImporter": true, "FilesystemParamsImporter": true, "VolumeTagger": true, "FilesystemTagger": true,
		// A source of filesystems is not guarded.
		"FilesystemResizer": true, "FilesystemChecker": true, "FilesystemRemarker": true, "FilesystemOwnerLister": true, "MountOptionsSetter": true,
		// These are about volumes on the machine.
		"BackingDevices": true, "BackingFiles": true, "FileVolumes": true, "FormatConsents": true,
	}
	for _, path := range []string{"capability.go", "owner.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), "../../../../storage/"+path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if _, ok := spec.Type.(*ast.InterfaceType); ok && !passedOn[spec.Name.Name] {
					t.Errorf("%s is not passed on", spec.Name)
				}
			}
			return true
		})
	}
}
