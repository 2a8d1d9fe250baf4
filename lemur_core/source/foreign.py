"""Parse foreign code: every failure is a SyntaxError, and what is returned is shallow enough to be walked.

The parser runs out of memory on 100,000 minus signs; `ast.unparse`, and any visitor, out of stack on an expression with
900 attributes in a row. The deepest of 10,000 files of PyTorch packages that defines a model has 60 levels.
"""

import ast
import warnings

#: Levels of a syntax tree. `ast.unparse` takes four calls for a level, of the 1,000 that Python allows.
MAX_DEPTH = 150


def parse_code(code: str | bytes) -> ast.Module:
    """Return the syntax tree of a file, without the warnings about it.

    Args: code: any text, or bytes in the encoding that they declare.
    Raises: SyntaxError, also for null bytes, a broken encoding, or code nested more than `MAX_DEPTH` levels deep.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in foreign code is not for our users
            tree = ast.parse(code)
    except ValueError as error:  # null bytes, surrogates
        raise SyntaxError(str(error)) from None
    except (RecursionError, MemoryError):
        raise SyntaxError("nested too deeply to parse") from None
    depth, level = 0, list(ast.iter_child_nodes(tree))
    while level:
        depth += 1
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if depth > MAX_DEPTH:
        raise SyntaxError(f"nested {depth} levels deep, more than {MAX_DEPTH}")
    return tree


def parse_expression(text: str) -> ast.expr:
    """Return the syntax tree of one expression; whitespace around it is ignored.

    Raises: SyntaxError as `parse_code`, and if it is not one expression.
    """
    body = parse_code(text.strip()).body
    if len(body) != 1 or not isinstance(body[0], ast.Expr):
        raise SyntaxError("not an expression")
    return body[0].value
