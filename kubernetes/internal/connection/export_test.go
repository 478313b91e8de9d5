package connection

import "go.yaml.in/yaml/v3"

// Rewritten returns the content of the file of a context after it was read and is written again.
func Rewritten(content []byte) ([]byte, error) {
	var a access
	if err := yaml.Unmarshal(content, &a); err != nil {
		return nil, err
	}
	return yaml.Marshal(a)
}
