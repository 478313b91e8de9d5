package provisioner_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each option of the controller's library, and no other, is on the page that says what stands for it.
func TestControllerOptionsPage(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller").Output()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var options []string
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.IsExported() && returnsOption(f) {
				options = append(options, f.Name.Name)
			}
		}
	}
	const page = "../../docs/reference/controller-options.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	code := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| `") {
			first, _, _ := strings.Cut(line, " | ")
			for _, match := range code.FindAllStringSubmatch(first, -1) {
				listed = append(listed, match[1])
			}
		}
	}
	slices.Sort(options)
	slices.Sort(listed)
	if len(options) == 0 || !slices.Equal(options, listed) {
		t.Errorf("%s has\n%q\nand the library has\n%q", page, listed, options)
	}
}

// returnsOption returns whether a function returns a func(*ProvisionController) error.
func returnsOption(f *ast.FuncDecl) bool {
	if f.Type.Results == nil || len(f.Type.Results.List) != 1 {
		return false
	}
	option, ok := f.Type.Results.List[0].Type.(*ast.FuncType)
	if !ok || len(option.Params.List) != 1 {
		return false
	}
	pointer, ok := option.Params.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	name, ok := pointer.X.(*ast.Ident)
	return ok && name.Name == "ProvisionController"
}
