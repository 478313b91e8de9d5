package provider

import (
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

func commonProvider(t *testing.T, p storage.ProviderType) storage.Provider {
	t.Helper()
	found, err := CommonStorageProviders().StorageProvider(p)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Behaviour O3.
func TestProviderProperties(t *testing.T) {
	for _, test := range []struct {
		provider          storage.ProviderType
		block, filesystem bool
		releasable        bool
	}{
		{LoopProviderType, true, false, true},
		{TmpfsProviderType, false, true, false},
		{RootfsProviderType, false, true, true},
	} {
		p := commonProvider(t, test.provider)
		if p.Scope() != storage.ScopeMachine || !p.Dynamic() || len(p.DefaultPools()) != 0 {
			t.Errorf("%s: scope %v, dynamic %v, pools %v", test.provider, p.Scope(), p.Dynamic(), p.DefaultPools())
		}
		if p.Supports(storage.StorageKindBlock) != test.block || p.Supports(storage.StorageKindFilesystem) != test.filesystem {
			t.Errorf("%s supports the wrong kinds", test.provider)
		}
		if p.Releasable() != test.releasable {
			t.Errorf("%s: releasable %v", test.provider, p.Releasable())
		}
		config := sourcetest.PoolOf(t, test.provider, storage.Attrs{storage.ConfigStorageDir: "/nowhere"})
		if _, err := p.VolumeSource(config); !test.block && !errors.Is(err, errors.NotSupported) {
			t.Errorf("%s: volumes: %v", test.provider, err)
		}
		if _, err := p.FilesystemSource(config); !test.filesystem && !errors.Is(err, errors.NotSupported) {
			t.Errorf("%s: filesystems: %v", test.provider, err)
		}
	}
	if _, err := CommonStorageProviders().StorageProvider("tape"); !errors.Is(err, errors.NotFound) {
		t.Errorf("tape: %v", err)
	}
}

func TestValidateConfig(t *testing.T) {
	for _, test := range []struct {
		about    string
		provider storage.ProviderType
		attrs    storage.Attrs
		want     string // empty: valid
	}{
		{"none", TmpfsProviderType, nil, ""},
		{"storage directory", LoopProviderType, storage.Attrs{"storage-dir": "/var/lib/x"}, ""},
		{"filesystem type of loop volumes", LoopProviderType, storage.Attrs{"fs": "xfs"}, ""},
		{"unknown filesystem type", LoopProviderType, storage.Attrs{"fs": "zfs"}, `storage pool "fast": attribute "fs" is "zfs"`},
		{"options of the filesystem", LoopProviderType, storage.Attrs{"fs": "xfs", "mkfs-options": "reflink=0", "mount-options": "noatime,logbufs=8"}, ""},
		{"options of another type", LoopProviderType, storage.Attrs{"fs": "xfs", "mkfs-options": "stride=16"}, `storage pool "fast": attribute "mkfs-options": "stride" is not an option for making xfs: allowed are inode-size=512|1024|2048, `},
		{"unsafe mount option", LoopProviderType, storage.Attrs{"mount-options": "nobarrier"}, `storage pool "fast": attribute "mount-options": "nobarrier" is not an option for mounting ext4: allowed are noatime, `},
		{"discarding on loop volumes", LoopProviderType, storage.Attrs{"mount-options": "noatime,discard"}, `storage pool "fast": attribute "mount-options": option "discard" would free space that thick volumes may need again`},
		{"UUID of a pool", LoopProviderType, storage.Attrs{"uuid": "11111111-2222-3333-4444-555555555555"}, `storage pool "fast": attribute "uuid" is not known`},
		{"filesystem type of tmpfs", TmpfsProviderType, storage.Attrs{"fs": "xfs"}, `storage pool "fast": attribute "fs" is not known to provider tmpfs, which takes mount-options`},
		{"options of tmpfs", TmpfsProviderType, storage.Attrs{"mount-options": "noexec,nosuid,nodev,ro,noatime,nodiratime,mode=0700,uid=7,gid=8,nr_inodes=100"}, ""},
		{"options of rootfs", RootfsProviderType, storage.Attrs{"mount-options": "noexec,nosuid,nodev,ro,relatime,nodiratime"}, ""},
		{"size of tmpfs", TmpfsProviderType, storage.Attrs{"mount-options": "size=1"}, `storage pool "fast": attribute "mount-options": "size" is not an option for mounting tmpfs: allowed are noatime, `},
		{"mode that is not octal", TmpfsProviderType, storage.Attrs{"mount-options": "mode=888"}, `storage pool "fast": attribute "mount-options": option "mode" for mounting tmpfs is "888": allowed is octal 0…1777`},
		{"too few inodes", TmpfsProviderType, storage.Attrs{"mount-options": "nr_inodes=1"}, `option "nr_inodes" for mounting tmpfs is "1": allowed is 16…1073741824`},
		{"mode of rootfs", RootfsProviderType, storage.Attrs{"mount-options": "mode=700"}, `storage pool "fast": attribute "mount-options": "mode" is not an option for mounting rootfs: allowed are noatime, relatime, strictatime, nodiratime, noexec, nosuid, nodev, ro`},
		{"options that are no text", RootfsProviderType, storage.Attrs{"mount-options": true}, `storage pool "fast": attribute "mount-options" is bool, want a string`},
		{"unknown", LoopProviderType, storage.Attrs{"sparse": true}, `storage pool "fast": attribute "sparse" is not known to provider loop, which takes fs, mkfs-options, mount-options`},
		{"unknown", RootfsProviderType, storage.Attrs{"b": 1, "a": 1}, `attribute "a"`},
		{"relative directory", RootfsProviderType, storage.Attrs{"storage-dir": "x"}, `storage directory "x" is not an absolute, clean path`},
		{"directory that leads elsewhere", RootfsProviderType, storage.Attrs{"storage-dir": "/x/../y"}, `"/x/../y"`},
		{"root directory", RootfsProviderType, storage.Attrs{"storage-dir": "/"}, `"/"`},
		{"directory of another type", RootfsProviderType, storage.Attrs{"storage-dir": 7}, `attribute "storage-dir" is int`},
	} {
		err := commonProvider(t, test.provider).ValidateConfig(sourcetest.PoolOf(t, test.provider, test.attrs))
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s, %s: %v", test.provider, test.about, err)
		case test.want != "" && (!errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s, %s: got %v, want %q", test.provider, test.about, err, test.want)
		}
	}
}

func TestSourcesRequireStorageDirectory(t *testing.T) {
	for _, p := range []storage.ProviderType{LoopProviderType, TmpfsProviderType, RootfsProviderType} {
		var err error
		if config := sourcetest.PoolOf(t, p, nil); p == LoopProviderType {
			_, err = commonProvider(t, p).VolumeSource(config)
		} else {
			_, err = commonProvider(t, p).FilesystemSource(config)
		}
		if !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "storage-dir") {
			t.Errorf("%s: %v", p, err)
		}
	}
}

func TestValidateForK8s(t *testing.T) {
	for _, p := range []storage.ProviderType{TmpfsProviderType, RootfsProviderType} {
		provider := commonProvider(t, p)
		for _, attributes := range []map[string]any{nil, {storage.K8sStorageMedium: "Memory"}, {storage.K8sStorageMedium: "HugePages"}} {
			if err := provider.ValidateForK8s(attributes); err != nil {
				t.Errorf("%s, %v: %v", p, attributes, err)
			}
		}
		for _, attributes := range []map[string]any{{storage.K8sStorageMedium: "Tape"}, {storage.K8sStorageMedium: 1}, {"foo": "bar"}} {
			if err := provider.ValidateForK8s(attributes); !errors.Is(err, errors.NotValid) {
				t.Errorf("%s, %v: %v", p, attributes, err)
			}
		}
	}
	if err := commonProvider(t, LoopProviderType).ValidateForK8s(nil); !errors.Is(err, errors.NotValid) {
		t.Errorf("loop: %v", err)
	}
}
