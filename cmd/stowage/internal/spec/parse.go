package spec

import (
	"bytes"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/juju/errors"
	"go.yaml.in/yaml/v3"

	"github.com/stowage-io/stowage/core/label"
	"github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/storage"
)

// Parse parses a file. name is used only in errors. An error is about one thing that is wrong, or is
// [Errors] with all that is.
func Parse(name string, data []byte) (*File, error) {
	if len(data) > MaxBytes {
		return nil, errors.NewNotValid(nil, name+": the file is larger than 1 MiB")
	}
	root, err := document(name, data)
	if err != nil {
		return nil, err
	}
	if root == nil {
		return nil, invalid(name, 1, "the file is empty: write `storage:` and a list")
	}
	p := parser{file: &File{Name: name}}
	p.top(root)
	if err := p.wrong.err(); err != nil {
		return nil, err
	}
	if err := checkMounts(p.file.Storage); err != nil {
		return nil, err
	}
	return p.file, nil
}

// document returns the root of the only document in data, or nil if data has no document or an
// empty one.
func document(name string, data []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := decoder.Decode(&doc); err == io.EOF {
		return nil, nil
	} else if err != nil {
		return nil, syntaxError(name, err)
	}
	if err := decoder.Decode(&more); err == nil {
		return nil, invalid(name, more.Line, "a second document: put each in its own file")
	} else if err != io.EOF {
		return nil, syntaxError(name, err)
	}
	root := doc.Content[0]
	if isNull(root) {
		return nil, nil
	}
	return root, refuseAliases(name, root)
}

// refuseAliases returns an error if the tree contains an alias, so that the tree is no larger
// than the file: an aliased value is read each time that it is referenced.
func refuseAliases(name string, node *yaml.Node) error {
	if node.Kind == yaml.AliasNode {
		return invalid(name, node.Line, "an alias (*%s): write the value out", node.Value)
	}
	for _, child := range node.Content {
		if err := refuseAliases(name, child); err != nil {
			return err
		}
	}
	return nil
}

// lineOfSyntaxError matches the position in an error of the YAML library.
var lineOfSyntaxError = regexp.MustCompile(`^yaml: line ([0-9]+): `)

func syntaxError(name string, err error) error {
	text := err.Error()
	if found := lineOfSyntaxError.FindStringSubmatch(text); found != nil {
		if line, err := strconv.Atoi(found[1]); err == nil {
			return invalid(name, line, "%s", strings.TrimPrefix(text, found[0]))
		}
	}
	return errors.NewNotValid(nil, name+": "+strings.TrimPrefix(text, "yaml: "))
}

type parser struct {
	file      *File
	instances uint64
	// wrong is all that is wrong, in the order of the file.
	wrong Errors
}

func (p *parser) top(root *yaml.Node) {
	entry := Entry{file: p.file.Name, title: "the file", line: root.Line}
	fields, err := entry.mapping(root, "storage", "pools")
	if err != nil {
		p.wrong.add(err)
		return
	}
	p.list(entry, "pools", fields["pools"], p.pool)
	p.list(entry, "storage", fields["storage"], p.storage)
}

// list calls item for each item of the list in node, if any. item returns the item's name once
// it has read it. Names must be unique.
func (p *parser) list(top Entry, key string, node *yaml.Node, item func(Entry, *yaml.Node) (Entry, string, error)) {
	if node == nil {
		return
	}
	if node.Kind != yaml.SequenceNode {
		p.wrong.add(top.Errorf(key, "not a list: write each item after a dash"))
		return
	}
	lines := map[string]int{}
	for i, child := range node.Content {
		entry, name, err := item(Entry{
			file:  p.file.Name,
			title: key + "[" + strconv.Itoa(i) + "]",
			line:  child.Line,
		}, child)
		p.wrong.add(err)
		if name == "" {
			continue
		}
		if line, ok := lines[name]; ok {
			p.wrong.add(entry.Errorf("name", "already used on line %d", line))
		} else {
			lines[name] = entry.fields["name"]
		}
	}
}

// mapping returns the fields of a mapping, which must all be known, and records their lines
// in e.
func (e *Entry) mapping(node *yaml.Node, known ...string) (map[string]*yaml.Node, error) {
	if node.Kind != yaml.MappingNode {
		return nil, e.Errorf("", "not a mapping: write `field: value` lines (%s)", strings.Join(known, ", "))
	}
	e.fields = map[string]int{}
	values := map[string]*yaml.Node{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			e.line = key.Line
			return nil, e.Errorf("", "a field whose name is not a word: the fields are %s", strings.Join(known, ", "))
		}
		name := key.Value
		if line, ok := e.fields[name]; ok {
			e.fields[name] = key.Line
			return nil, e.Errorf(name, "already given on line %d", line)
		}
		if !slices.Contains(known, name) {
			e.line = key.Line
			return nil, e.Errorf("", "unknown field %s: the fields are %s", quote(name), strings.Join(known, ", "))
		}
		e.fields[name] = key.Line
		if !isNull(value) {
			values[name] = value
		}
	}
	return values, nil
}

// text returns the string in a field, or "" if the field is absent.
func (e Entry) text(fields map[string]*yaml.Node, name string) (string, error) {
	node, ok := fields[name]
	if !ok {
		return "", nil
	}
	if node.Kind != yaml.ScalarNode {
		return "", e.Errorf(name, "not a string")
	}
	if node.ShortTag() != "!!str" {
		return "", e.Errorf(name, "not a string: write it in quotes, %q", node.Value)
	}
	return node.Value, nil
}

func isNull(node *yaml.Node) bool {
	return node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null"
}

// quote quotes user input for a message, whatever its length and contents.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strconv.Quote(s)
}

func (p *parser) pool(entry Entry, node *yaml.Node) (Entry, string, error) {
	pool, err := parsePool(entry, node)
	if err != nil {
		return pool.Entry, pool.Name, err
	}
	p.file.Pools = append(p.file.Pools, pool)
	return pool.Entry, pool.Name, nil
}

func parsePool(entry Entry, node *yaml.Node) (Pool, error) {
	pool := Pool{Entry: entry}
	fields, err := pool.mapping(node, "name", "provider", "attributes")
	if err != nil {
		return pool, err
	}
	if pool.Name, err = pool.text(fields, "name"); err != nil {
		return pool, err
	}
	if pool.Name == "" {
		return pool, pool.Errorf("name", "missing")
	}
	if len(pool.Name) > maxPoolName {
		return pool, pool.Errorf("name", "%s is longer than %d bytes", quote(pool.Name), maxPoolName)
	}
	if !storage.IsValidPoolName(pool.Name) {
		return pool, pool.Errorf("name", "%s is not a pool name: a letter, then letters, digits and hyphens", quote(pool.Name))
	}
	pool.title = "pool " + pool.Name

	provider, err := pool.text(fields, "provider")
	if err != nil {
		return pool, err
	}
	if provider == "" {
		return pool, pool.Errorf("provider", "missing")
	}
	pool.Provider = storage.ProviderType(provider)

	return pool, pool.parseAttributes(fields["attributes"])
}

// parseAttributes accepts only values that do not change when they are stored and read back:
// strings, whole numbers and booleans.
func (p *Pool) parseAttributes(node *yaml.Node) error {
	p.Attributes = storage.Attrs{}
	if node == nil {
		return nil
	}
	if node.Kind != yaml.MappingNode {
		return p.Errorf("attributes", "not a mapping: write `key: value` lines under it")
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		p.fields["attributes"] = key.Line
		if key.Kind != yaml.ScalarNode || key.Value == "" {
			return p.Errorf("attributes", "a key that is not a string")
		}
		if _, ok := p.Attributes[key.Value]; ok {
			return p.Errorf("attributes", "%s is given twice", quote(key.Value))
		}
		var attr any
		switch value.ShortTag() {
		case "!!str", "!!int", "!!bool":
			if err := value.Decode(&attr); err != nil {
				return p.Errorf("attributes", "%s is not valid", quote(key.Value))
			}
		default:
			return p.Errorf("attributes", "%s is not a string, a whole number or a boolean", quote(key.Value))
		}
		p.Attributes[key.Value] = attr
	}
	return nil
}

func (p *parser) storage(entry Entry, node *yaml.Node) (Entry, string, error) {
	declared, err := parseStorage(entry, node)
	if err != nil {
		return declared.Entry, declared.Name, err
	}
	count := declared.Directive.Count
	if count > MaxInstances || p.instances+count > MaxInstances {
		return declared.Entry, declared.Name, declared.Errorf("directive", "the file asks for more than %d instances", MaxInstances)
	}
	p.instances += count
	p.file.Storage = append(p.file.Storage, declared)
	return declared.Entry, declared.Name, nil
}

var validName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)

// CheckName returns an error if the name is not valid for storage.
func CheckName(name string) error {
	if !validName.MatchString(name) {
		return errors.Errorf("%s is not a name: a lower-case letter, then at most 62 lower-case letters, digits and hyphens", quote(name))
	}
	return nil
}

func parseStorage(entry Entry, node *yaml.Node) (Storage, error) {
	s := Storage{Entry: entry}
	fields, err := s.mapping(node, "name", "directive", "kind", "from", "asker", "attached", "labels", "machine", "machine-labels", "mount", "filesystem", "mkfs-options", "mount-options")
	if err != nil {
		return s, err
	}
	if s.Name, err = s.text(fields, "name"); err != nil {
		return s, err
	}
	if s.Name == "" {
		return s, s.Errorf("name", "missing")
	}
	if err := CheckName(s.Name); err != nil {
		return s, s.Errorf("name", "%s", err)
	}
	s.title = "storage " + s.Name

	var wrong Errors
	wrong.add(s.parseDirective(fields))
	kindErr := s.parseKind(fields)
	wrong.add(kindErr)
	for _, step := range []func(map[string]*yaml.Node) error{
		s.parseFrom, s.parseAsker, s.parseAttached, s.parseLabels, s.parseMachine,
	} {
		wrong.add(step(fields))
	}
	if kindErr == nil { // what else is valid depends on the kind
		wrong.add(s.parseMount(fields))
		wrong.add(s.parseFilesystem(fields))
	}
	return s, wrong.err()
}

// Request returns the storage that a request asks for, which is in no file. fields are other fields of an
// entry, by the same rules; an empty one counts as missing. A filesystem needs a mount point if the field
// is among them, unless it is not to be made: then directive has no pool. Errors begin with title.
func Request(title, name string, directive storage.Directive, fields map[string]string) (Storage, error) {
	s := Storage{Entry: Entry{title: title, fields: map[string]int{}}, Name: name, Directive: directive}
	nodes := map[string]*yaml.Node{}
	for field, text := range fields {
		s.fields[field] = 0
		if text != "" {
			nodes[field] = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
		}
	}
	if err := CheckName(name); err != nil {
		return s, s.Errorf("name", "%s", err)
	}
	steps := []func(map[string]*yaml.Node) error{s.parseKind, s.parseMachine}
	if _, mounts := fields["mount"]; mounts && directive.Pool != "" {
		steps = append(steps, s.parseMount)
	}
	for _, step := range steps {
		if err := step(nodes); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *Storage) parseDirective(fields map[string]*yaml.Node) error {
	text, err := s.text(fields, "directive")
	if err != nil {
		return err
	}
	if text == "" {
		return s.Errorf("directive", "missing: write POOL,SIZE such as loop,2G")
	}
	s.Directive, err = storage.ParseDirective(text)
	if isZeroSize(text) {
		return s.Errorf("directive", "%s gives a size of zero: write POOL,SIZE such as loop,2G", quote(text))
	}
	if err != nil {
		return s.Errorf("directive", "%s", err)
	}
	if s.Directive.Pool == "" {
		return s.Errorf("directive", "%s names no pool: write POOL,SIZE such as loop,2G", quote(text))
	}
	if s.Directive.Size == 0 {
		return s.Errorf("directive", "%s gives no size: write POOL,SIZE such as %s,2G", quote(text), s.Directive.Pool)
	}
	return nil
}

// isZeroSize reports whether a directive has a zero, with a unit or without, and no size.
func isZeroSize(directive string) bool {
	zero := false
	for field := range strings.SplitSeq(directive, ",") {
		digits := strings.TrimRight(field, "MGTPEZYiB")
		switch {
		case digits != "" && strings.Trim(digits, "0.") == "":
			zero = true
		case digits != field && strings.Trim(digits, "0123456789.") == "":
			return false
		}
	}
	return zero
}

func (s *Storage) parseKind(fields map[string]*yaml.Node) error {
	text, err := s.text(fields, "kind")
	if err != nil {
		return err
	}
	switch text {
	case storage.StorageKindBlock.String():
		s.Kind = storage.StorageKindBlock
	case storage.StorageKindFilesystem.String():
		s.Kind = storage.StorageKindFilesystem
	case "":
		return s.Errorf("kind", "missing: write block or filesystem")
	default:
		return s.Errorf("kind", "%s is not a kind: write block or filesystem", quote(text))
	}
	return nil
}

func (s *Storage) parseFrom(fields map[string]*yaml.Node) error {
	text, err := s.text(fields, "from")
	if err != nil || text == "" {
		return err
	}
	if err := CheckName(text); err != nil {
		return s.Errorf("from", "%s", err)
	}
	s.From.Snapshot = text
	return nil
}

func (s *Storage) parseAsker(fields map[string]*yaml.Node) error {
	text, err := s.text(fields, "asker")
	if err != nil || text == "" {
		return err
	}
	s.Asker.Way, s.Asker.Name, _ = strings.Cut(text, "/")
	if err := s.Asker.Validate(); err != nil {
		return s.Errorf("asker", "%s is not WAY/NAME, such as kubernetes/pvc-1: %s", quote(text), err)
	}
	if s.Directive.Count > 1 {
		return s.Errorf("asker", "a program asks for one instance at a time: leave the count out of the directive")
	}
	return nil
}

func (s *Storage) parseAttached(fields map[string]*yaml.Node) error {
	node, ok := fields["attached"]
	if !ok {
		return nil
	}
	attached := true
	if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!bool" || node.Decode(&attached) != nil {
		return s.Errorf("attached", "write true or false")
	}
	s.Detached = !attached
	return nil
}

// parseLabels reads what a file says about storage. An empty mapping removes labels.
func (s *Storage) parseLabels(fields map[string]*yaml.Node) error {
	node, ok := fields["labels"]
	if !ok {
		return nil
	}
	if node.Kind != yaml.MappingNode {
		return s.Errorf("labels", "not a mapping: write `key: value` lines under it")
	}
	texts := make([]string, 0, len(node.Content)/2)
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		s.fields["labels"] = key.Line
		if key.Kind != yaml.ScalarNode || value.Kind != yaml.ScalarNode {
			return s.Errorf("labels", "a key or a value that is not a string")
		}
		if value.ShortTag() != "!!str" {
			return s.Errorf("labels", "%s is not a string: write it in quotes, %q", quote(key.Value), value.Value)
		}
		texts = append(texts, key.Value+"="+value.Value)
		if _, err := label.Parse(texts[len(texts)-1:]); err != nil {
			return s.Errorf("labels", "%s", err)
		}
	}
	labels, err := label.Parse(texts)
	if err == nil {
		err = label.Check(labels)
	}
	if err != nil {
		return s.Errorf("labels", "%s", err)
	}
	s.Labels = labels
	return nil
}

// parseMachine accepts a number without quotes. A name may look like a number in YAML, such as
// 0x1f, and is used as it is written.
func (s *Storage) parseMachine(fields map[string]*yaml.Node) error {
	text, err := s.text(fields, "machine")
	if node := fields["machine"]; node != nil && node.Kind == yaml.ScalarNode && node.ShortTag() == "!!int" {
		text, err = node.Value, nil
	}
	if err != nil {
		return err
	}
	switch {
	case text != "" && text != machine.Any && !machine.IsName(text) && !machine.IsNumber(text):
		return s.Errorf("machine", "%s is neither the name nor the number of a machine: a name has up to 63 lower-case letters, digits, hyphens and dots, with a letter or digit at both ends", quote(text))
	}
	s.Machine = text
	return s.parseMachineLabels(fields)
}

// parseMachineLabels reads the labels by which a machine is chosen.
func (s *Storage) parseMachineLabels(fields map[string]*yaml.Node) error {
	text, err := s.text(fields, "machine-labels")
	if err != nil || text == "" {
		return err
	}
	if s.Machine != machine.Any {
		return s.Errorf("machine-labels", "they choose a machine: write machine: %s, or leave them out", machine.Any)
	}
	if s.MachineLabels, err = label.ParseSelector(text); err != nil {
		return s.Errorf("machine-labels", "%s", err)
	}
	return nil
}

func (s *Storage) parseMount(fields map[string]*yaml.Node) error {
	text, err := s.text(fields, "mount")
	if err != nil {
		return err
	}
	if s.Kind == storage.StorageKindBlock {
		if text != "" {
			return s.Errorf("mount", "a block device is not mounted: leave it out, or write kind: filesystem")
		}
		return nil
	}
	if text == "" {
		return s.Errorf("mount", "missing: write the directory to mount the filesystem on")
	}
	if err := CheckMountPoint(text); err != nil {
		return s.Errorf("mount", "%s", err)
	}
	s.Mount = text
	return nil
}

// parseFilesystem reads the choices about a filesystem. The source that makes the filesystem
// decides which types and options are valid.
func (s *Storage) parseFilesystem(fields map[string]*yaml.Node) error {
	for _, choice := range s.Choices() {
		text, err := s.text(fields, choice.Field)
		if err != nil {
			return err
		}
		if text != "" && s.Kind == storage.StorageKindBlock {
			return s.Errorf(choice.Field, "a block device has none: leave it out, or write kind: filesystem")
		}
		*choice.Value = text
	}
	return nil
}
