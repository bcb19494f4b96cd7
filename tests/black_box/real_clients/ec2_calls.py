"""Starts EC2 instances with the `boto3` package as it comes from PyPI: ec2_calls.py ENDPOINT TOKEN:IMAGE...

The token `-` leaves it to the client to make one up. A line is printed for each: the reservation and its instance, or
the client's own error; and how many different signatures the client's tries had.
"""
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

endpoint, *calls = sys.argv[1:]
ec2 = boto3.client(
    "ec2",
    endpoint_url=endpoint,
    region_name="eu-central-1",
    aws_access_key_id="AKIDEXAMPLE",
    aws_secret_access_key="wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    config=Config(read_timeout=3, retries={"mode": "standard", "max_attempts": 4}),
)
signatures = set()
ec2.meta.events.register("before-send.ec2", lambda request, **_: signatures.add(request.headers["Authorization"]))
for call in calls:
    token, image = call.split(":")
    signatures.clear()
    try:
        made = ec2.run_instances(
            ImageId=image, MinCount=1, MaxCount=1, **({} if token == "-" else {"ClientToken": token})
        )
        said = f"{made['ReservationId']} {made['Instances'][0]['InstanceId']}"
    except ClientError as error:
        answer = error.response
        said = f"ClientError {answer['ResponseMetadata']['HTTPStatusCode']} {answer['Error']['Code']}"
    print(said, len(signatures))
