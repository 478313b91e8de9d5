// Csi makes a filesystem with a CSI driver, mounts it until it reads a line, and removes it.
//
//	go run ./examples/csi hostpath.csi.k8s.io /run/hostpath/csi.sock /var/lib/csi-example /srv/data
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/google/uuid"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/csi"
)

func main() {
	ctx, args := envcontext.New(context.Background()), os.Args[1:]
	provider := must(csi.New(csi.Config{Name: "example", Driver: args[0], Socket: args[1], StorageDir: args[2]}))
	source := must(provider.FilesystemSource(must(storage.NewConfig("example", "example", nil))))
	wanted := storage.FilesystemParams{Tag: names.NewFilesystemTag("0"), Size: 320, ResourceTags: map[string]string{storage.EntityUUIDTag: uuid.NewString()}}
	made := must(source.CreateFilesystems(ctx, []storage.FilesystemParams{wanted}))[0]
	id := must(made.Filesystem, made.Error).FilesystemId
	at := []storage.FilesystemAttachmentParams{{Filesystem: wanted.Tag, FilesystemId: id, Path: args[3]}}
	fmt.Println("mounted at", must(args[3], must(source.AttachFilesystems(ctx, at))[0].Error))
	_, _ = fmt.Scanln()
	must(0, must(source.DetachFilesystems(ctx, at))[0])
	must(0, must(source.DestroyFilesystems(ctx, []string{id}))[0])
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
