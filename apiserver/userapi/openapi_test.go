package userapi_test

import (
	"flag"
	"os"
	"testing"

	"github.com/stowage-io/stowage/apiserver/userapi"
	"github.com/stowage-io/stowage/apiserver/userapi/userapitest"
	"github.com/stowage-io/stowage/core/role"
)

var update = flag.Bool("update", false, "rewrite "+documentPath)

const documentPath = "../../docs/reference/openapi.yaml"

// The document in the tree is what a server serves.
func TestOpenAPIDocumentIsCurrent(t *testing.T) {
	h := handler(t, &userapitest.Backend{}, userapi.Caller{Role: role.Viewer})
	status, served := request(h, "GET", "/v1/openapi.yaml", "")
	if status != 200 {
		t.Fatalf("answered with %d %s", status, served)
	}
	served += "\n"
	if *update {
		if err := os.WriteFile(documentPath, []byte(served), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if kept, err := os.ReadFile(documentPath); err != nil || string(kept) != served {
		t.Errorf("%s is not current (%v): run `make generate`", documentPath, err)
	}
}
