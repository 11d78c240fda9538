"""Errors of jsonargparse about options of fit, validate and test in plain words."""

import re

from fer_vit.errors import short


def describe_option(error: str) -> str:
    """Returns an error of jsonargparse about the type of an option in plain words.

    The text names all types that the option may have. Other errors are returned unaltered.
    """
    # Parser key "model.network": Unable to load config 'x.parquet'
    group = re.match(
        r"""Parser key "(?P<name>[\w.]+)":\s+Unable to load config '(?P<value>.*?)'""", error
    )
    if group is not None:
        name = group["name"]
        return (
            f"Expected `--{name}` to be a YAML file of settings, but got {short(group['value'])}. "
            f"`--{name}.NAME VALUE` is one setting; `--help` lists them"
        )
    failed_class = describe_class(error)
    if failed_class:
        return failed_class
    # Parser key "model.lr": Expected a <class 'float'>. Got value: half
    pattern = r'Parser key "(?P<option>[\w.]+)":(?P<types>.*)(?:Value|value): (?P<value>.*)'
    match = re.fullmatch(pattern, error, re.DOTALL)
    if match is None:
        return error
    types = match["types"]
    several = re.search(r"Subtypes: \[(.*)\]\n", types)
    expected = describe_types(several[1] if several else types)
    if not expected:
        return error
    return f"Expected `--{match['option']}` to be {expected}, but got {short(match['value'])}"


def describe_class(error: str) -> str:
    """Returns an error of jsonargparse about a named class in plain words; empty for others."""
    option = re.match(r'Parser key "([\w.]+)"', error)
    if option is None:
        return ""
    # - Problem with given class_path 'my_module.MyCallback':
    #     No module named 'my_module'
    named = r"- Problem with given class_path '(?P<name>.+?)':\s+(?P<reason>.+?)"
    problem = re.search(rf"{named}(?=\n\s+- |\n  Given|\Z)", error, re.DOTALL)
    if problem:
        reason = " ".join(problem["reason"].split())
        return (
            f"`--{option[1]}` names {problem['name']}, which cannot be built: {reason}. A class of "
            "your own is found in the current folder and in PYTHONPATH."
        )
    unknown = re.search(
        r"- (?:Expected a dot import path string|Import path does not correspond to a subclass)",
        error,
    )
    given = re.search(r"Given value: (.*)\Z", error, re.DOTALL)
    if unknown and given:
        return (
            f"Expected `--{option[1]}` to be the name of a fitting class, such as "
            f"my_module.MyClass, but got {short(given[1])}."
        )
    return ""


def describe_types(types: str) -> str:
    """Returns the types in a text of Python in plain words; empty if the text has no type."""
    choices: list[str] = []
    words: list[str] = []
    named = r"typing\.Literal\[(?P<choices>.*?)\]|<class '(?P<type>[\w.]+)'>|\b(?P<group>\w+)\["
    for match in re.finditer(named, types):
        if match["choices"]:
            choices += match["choices"].replace("'", "").split(", ")
            continue
        name = match["type"] or match["group"].lower()
        word = VALUE_TYPES.get(name, name.rpartition(".")[2])
        if name not in ("NoneType", "optional", "union") and word not in words:
            words.append(word)
    if VALUE_TYPES["float"] in words and VALUE_TYPES["int"] in words:
        words.remove(VALUE_TYPES["int"])  # a whole number is a number
    if choices:
        words.insert(0, f"one of {', '.join(dict.fromkeys(choices))}")
    return " or ".join(words)


VALUE_TYPES = {  # what an option expects, by the type of its values
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "text",
    "dict": "names with values, such as {old: new}",
    "list": "a list",
    "sequence": "a list",
    "iterable": "a list",
}
